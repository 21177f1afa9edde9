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

{{/* Labels of the values for pods; those of the chart select pods and are not replaced. Argument: (list $ COMPONENT KEY LABELS). */}}
{{- define "ringq.podLabels" -}}
{{- $own := include "ringq.labels" (list (index . 0) (index . 1)) | fromYaml -}}
{{- range $label, $value := index . 3 -}}
{{- if or (hasKey $own $label) (eq $label "ringq.dev/shard") -}}
{{- fail (printf "%s: the chart sets the label %s itself" (index $ 2) $label) -}}
{{- end -}}
{{- end -}}
{{- with index . 3 }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* An upgrade to another store would leave the jobs where no server looks for them. Without a cluster nothing is found. */}}
{{- define "ringq.checkStore" -}}
{{- $name := include "ringq.fullname" . -}}
{{- $was := .Values.store -}}
{{- if .Release.IsUpgrade -}}
{{- range $store, $object := dict
      "redis" (lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-redis" $name))
      "sqlite" (lookup "apps/v1" "StatefulSet" .Release.Namespace $name) -}}
{{- $labels := dig "metadata" "labels" dict $object -}}
{{- if eq (index $labels "app.kubernetes.io/instance" | default "") $.Release.Name }}{{ $was = $store }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if ne $was .Values.store -}}
{{- fail (printf "store: this release has store %s, and no server with store %s finds its jobs; install a second release, empty this one and uninstall it" $was .Values.store) -}}
{{- end -}}
{{- end }}

{{/* The default is for ports without TLS. */}}
{{- define "ringq.appProtocol" -}}
{{- if and .Values.tls.secretName (eq .Values.service.appProtocol "kubernetes.io/h2c") -}}
https
{{- else -}}
{{ .Values.service.appProtocol }}
{{- end -}}
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
{{- with $given }}{{ toYaml . }}{{ end -}}
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
