{{/*
A probe. kubelet uses no TLS for gRPC and checks no certificate for HTTPS, and it has none of its own. Argument:
(list $ GRPC_SERVICE HTTP_PATH).
*/}}
{{- define "ringq.probe" -}}
{{- $tls := (index . 0).Values.tls -}}
{{- if not $tls.secretName -}}
grpc:
  port: 7700
  service: {{ index . 1 | default "\"\"" }}
{{- else if and $tls.clientCa (eq $tls.clientAuth "required") -}}
tcpSocket:
  port: 7701
{{- else -}}
httpGet:
  port: 7701
  path: {{ index . 2 }}
  scheme: HTTPS
{{- end -}}
{{- end }}

{{/* Pod template of the server, for the Deployment and for the StatefulSet of store sqlite. */}}
{{- define "ringq.serverPod" -}}
{{- $source := include "ringq.configSource" . -}}
{{- $sqlite := eq .Values.store "sqlite" -}}
{{- $tls := and .Values.external.tls.secretName (not $sqlite) -}}
metadata:
  labels:
    {{- include "ringq.labels" (list . "server") | nindent 4 }}
    {{- with include "ringq.podLabels" (list . "server" "podLabels" .Values.podLabels) }}
    {{- . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if ne $source "existing" }}
    # Servers read their settings at start only.
    checksum/config: {{ include "ringq.toml" . | sha256sum }}
    {{- end }}
    kubectl.kubernetes.io/default-container: ringq
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "ringq.serviceAccountName" . }}
  automountServiceAccountToken: {{ .Values.auth.serviceAccountTokens }}
  enableServiceLinks: false
  # drain_delay + shutdown_grace + 20 s
  terminationGracePeriodSeconds: {{ include "ringq.terminationGracePeriodSeconds" . }}
  securityContext:
    {{- include "ringq.podSecurityContext" 65532 | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $sqlite }}
  {{- with include "ringq.topologySpreadConstraints" (list . "server" .Values.topologySpreadConstraints) | trim }}
  topologySpreadConstraints:
    {{- . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    - name: ringq
      image: {{ include "ringq.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env:
        {{- include "ringq.env" . | trim | nindent 8 }}
        {{- with include "ringq.extraEnv" . }}
        {{- . | nindent 8 }}
        {{- end }}
      ports:
        - name: grpc
          containerPort: 7700
          protocol: TCP
        - name: http
          containerPort: 7701
          protocol: TCP
      # Service "" is the process. It does not depend on shards: a restart of the server does not repair a Redis.
      startupProbe:
        {{- include "ringq.probe" (list . "" "/healthz") | nindent 8 }}
        periodSeconds: 1
        timeoutSeconds: 2
        # A large SQLite file can take this long to recover.
        failureThreshold: 120
      livenessProbe:
        {{- include "ringq.probe" (list . "" "/healthz") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      # Ready while one shard answers.
      readinessProbe:
        {{- include "ringq.probe" (list . "ringq.v1.QueueService" "/readyz") | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "ringq.securityContext" . | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: /etc/ringq
          readOnly: true
        {{- if .Values.topics }}
        - name: topics
          mountPath: /etc/ringq-topics
          readOnly: true
        {{- end }}
        {{- if .Values.auth.enabled }}
        - name: identities
          mountPath: /etc/ringq-identities
          readOnly: true
        {{- end }}
        {{- with .Values.tls.secretName }}
        # Directories, not files: a file that is mounted by itself is never updated.
        - name: tls
          mountPath: /etc/ringq-tls
          readOnly: true
        {{- end }}
        {{- if .Values.tls.clientCa }}
        - name: client-ca
          mountPath: /etc/ringq-client-ca
          readOnly: true
        {{- end }}
        {{- if $tls }}
        - name: redis-tls
          mountPath: /etc/ringq-redis-tls
          readOnly: true
        {{- end }}
        {{- if $sqlite }}
        - name: data
          mountPath: /data
        {{- end }}
  volumes:
    - name: config
      {{- if eq $source "environment" }}
      configMap:
        name: {{ include "ringq.configName" . }}
      {{- else }}
      secret:
        secretName: {{ include "ringq.configName" . }}
        defaultMode: 0440
      {{- end }}
    # Servers read topics and identities again when they change, so their checksums are not above.
    {{- if .Values.topics }}
    - name: topics
      configMap:
        name: {{ include "ringq.topicsName" . }}
    {{- end }}
    {{- if .Values.auth.enabled }}
    - name: identities
      secret:
        secretName: {{ include "ringq.identitiesName" . }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.tls.secretName }}
    - name: tls
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.tls.clientCa }}
    - name: client-ca
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- if $tls }}
    - name: redis-tls
      secret:
        secretName: {{ .Values.external.tls.secretName }}
        defaultMode: 0440
    {{- end }}
{{- end }}
