{{- define "ringq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 36 | trimSuffix "-" -}}
{{- end }}

{{/* 36 characters leave room for `-redis-` and 8 of a shard in the 52 that the name of a StatefulSet may have. */}}
{{- define "ringq.fullname" -}}
{{- $name := include "ringq.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 36 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 36 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Labels that select pods; they never change. Argument: (list $ COMPONENT). */}}
{{- define "ringq.selectorLabels" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "ringq.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Labels that do not change with a version. Argument: (list $ COMPONENT). */}}
{{- define "ringq.fixedLabels" -}}
{{ include "ringq.selectorLabels" . }}
app.kubernetes.io/part-of: ringq
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
{{- end }}

{{/* Argument: (list $ COMPONENT). The version is that of the program in the component. */}}
{{- define "ringq.labels" -}}
{{- $root := first . -}}
{{- $version := default $root.Chart.AppVersion $root.Values.image.tag -}}
{{- if eq (last .) "redis" }}{{ $version = $root.Values.redis.image.tag }}{{ end -}}
{{ include "ringq.fixedLabels" . }}
app.kubernetes.io/version: {{ $version | splitList "@" | first | trunc 63 | trimAll "-_." | quote }}
{{- end }}

{{- define "ringq.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "ringq.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ringq.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Seconds of a duration like 1h30m, rounded up. */}}
{{- define "ringq.seconds" -}}
{{- $millis := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $factor := index (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000) $unit -}}
{{- $millis = add $millis (mul (regexFind "[0-9]+" . | int64) $factor) -}}
{{- end -}}
{{- div (add $millis 999) 1000 -}}
{{- end }}

{{/* drain_delay + shutdown_grace + 20 s; shards that do not answer can take that long. */}}
{{- define "ringq.terminationGracePeriodSeconds" -}}
{{- $drain := default "0s" .Values.settings.drain_delay -}}
{{- $grace := default (eq .Values.store "sqlite" | ternary "2s" "60s") .Values.settings.shutdown_grace -}}
{{- add (include "ringq.seconds" $drain | int64) (include "ringq.seconds" $grace | int64) 20 -}}
{{- end }}

{{- define "ringq.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ringq.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities:
  drop: [ALL]
{{- end }}

{{/* Argument: (list $ COMPONENT CONSTRAINTS). */}}
{{- define "ringq.topologySpreadConstraints" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $given := index . 2 -}}
{{- if kindIs "slice" $given -}}
{{- toYaml $given -}}
{{- else -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  {{- if eq $component "server" }}
  matchLabelKeys: [pod-template-hash]
  {{- end }}
  labelSelector:
    matchLabels:
      {{- include "ringq.selectorLabels" (list $root $component) | nindent 6 }}
{{- end }}
{{- end -}}
{{- end }}
