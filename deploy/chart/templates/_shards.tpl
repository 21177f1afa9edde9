{{/*
The list of shards, and the three ways in which the servers get it:

  environment  RINGQ_SHARDS, in which kubelet puts passwords and URLs from Secrets. Settings are in a ConfigMap.
  file         a weight or a state needs [[shard]] tables, so the whole ringq.toml, passwords included, is in a Secret.
  existing     the whole ringq.toml is in a Secret of the operator.
*/}}

{{/* JSON list of the shards that the servers use, checked. */}}
{{- define "ringq.shards" -}}
{{- $key := eq .Values.store "external" | ternary "external" "redis" -}}
{{- $all := eq .Values.store "sqlite" | ternary list (index .Values $key).shards -}}
{{- $names := list -}}
{{- $used := list -}}
{{- $active := 0 -}}
{{- range $all -}}
{{- if has .name $names -}}
{{- fail (printf "%s.shards: the name %s is given twice; a name belongs to one shard for ever" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if not .retired -}}
{{- $used = append $used . -}}
{{- if ne (default "active" .state) "draining" }}{{ $active = add1 $active }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $listed := and (ne .Values.store "sqlite") (not .Values.existingConfigSecret) -}}
{{- if and $listed (eq (int $active) 0) -}}
{{- fail (printf "%s.shards: at least one shard that is neither retired nor draining is needed" $key) -}}
{{- end -}}
{{- toJson $used -}}
{{- end }}

{{- define "ringq.configSource" -}}
{{- $tables := false -}}
{{- range include "ringq.shards" . | fromJsonArray -}}
{{- if or (ne (int (default 1 .weight)) 1) (ne (default "active" .state) "active") }}{{ $tables = true }}{{ end -}}
{{- end -}}
{{- if .Values.existingConfigSecret -}}
{{- if eq .Values.store "sqlite" -}}
{{- fail "existingConfigSecret is for shards with passwords; with store sqlite use settings" -}}
{{- end -}}
{{- range $key, $value := .Values.settings -}}
{{- if and (not (kindIs "invalid" $value)) (not (has $key (list "drain_delay" "shutdown_grace"))) -}}
{{- fail (printf "settings.%s: with existingConfigSecret write it into ringq.toml of that Secret" $key) -}}
{{- end -}}
{{- end -}}
existing
{{- else if $tables -}}
file
{{- else -}}
environment
{{- end -}}
{{- end }}

{{- define "ringq.configName" -}}
{{- default (printf "%s-config" (include "ringq.fullname" .)) .Values.existingConfigSecret -}}
{{- end }}

{{- define "ringq.topicsName" -}}
{{- printf "%s-topics" (include "ringq.fullname" .) -}}
{{- end }}

{{- define "ringq.redisSecretName" -}}
{{- default (printf "%s-redis" (include "ringq.fullname" .)) .Values.redis.auth.existingSecret -}}
{{- end }}

{{/* Password of the chart's own shards: that of the Secret in the cluster, or else a random one, the same within one rendering. */}}
{{- define "ringq.redisPassword" -}}
{{- $auth := .Values.redis.auth -}}
{{- if not (hasKey $auth "resolved") -}}
{{- $name := include "ringq.redisSecretName" . -}}
{{- $data := (lookup "v1" "Secret" .Release.Namespace $name).data | default dict -}}
{{- if hasKey $data $auth.key -}}
{{- $_ := set $auth "resolved" (index $data $auth.key | b64dec) -}}
{{- else if $auth.existingSecret -}}
{{- fail (printf "redis.shards: a weight or a state needs the password while the chart renders, and the Secret %s with the key %s cannot be read; create it first, or without a cluster use existingConfigSecret" $name $auth.key) -}}
{{- else -}}
{{- $_ := set $auth "resolved" (randAlphaNum 32) -}}
{{- end -}}
{{- end -}}
{{- $auth.resolved -}}
{{- end }}

{{/* URL of one shard with its password. Argument: (list $ SHARD). */}}
{{- define "ringq.shardUrl" -}}
{{- $root := first . -}}
{{- $shard := last . -}}
{{- if eq $root.Values.store "redis" -}}
{{- $password := include "ringq.redisPassword" $root | urlquery | replace "+" "%20" -}}
{{- printf "redis://:%s@%s-redis-%s:6379" $password (include "ringq.fullname" $root) $shard.name -}}
{{- else -}}
{{- $key := default "url" $shard.secretKey -}}
{{- $data := (lookup "v1" "Secret" $root.Release.Namespace $shard.secretName).data | default dict -}}
{{- if not (hasKey $data $key) -}}
{{- fail (printf "external.shards: a weight or a state needs the URLs while the chart renders, and the Secret %s with the key %s cannot be read; create it first, or without a cluster use existingConfigSecret" $shard.secretName $key) -}}
{{- end -}}
{{- index $data $key | b64dec | trim -}}
{{- end -}}
{{- end }}

{{/* The settings file. Shards come last: in TOML a table takes all lines that follow it. */}}
{{- define "ringq.toml" -}}
# docs/configuration.md describes the settings. Addresses, paths and the name of the server are variables of the pod.
{{- range $key, $value := .Values.settings }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- if eq (include "ringq.configSource" .) "file" }}
{{- range include "ringq.shards" . | fromJsonArray }}

[[shard]]
name = {{ toJson .name }}
url = {{ include "ringq.shardUrl" (list $ .) | toJson }}
weight = {{ default 1 .weight | int }}
state = {{ default "active" .state | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables of the server container, without those of `extraEnv`. */}}
{{- define "ringq.env" -}}
{{- $source := include "ringq.configSource" . -}}
- name: RINGQ_CONFIG
  value: /etc/ringq/ringq.toml
- name: RINGQ_LISTEN
  value: {{ printf "%s:7700" .Values.bindAddress | quote }}
- name: RINGQ_HTTP_LISTEN
  value: {{ printf "%s:7701" .Values.bindAddress | quote }}
- name: RINGQ_HTTP_JSON
  value: {{ .Values.httpJson | quote }}
- name: RINGQ_METRICS_OPEN
  value: {{ .Values.metricsOpen | quote }}
{{- if .Values.topics }}
- name: RINGQ_TOPICS
  value: /etc/ringq-topics
{{- end }}
{{- if .Values.auth.enabled }}
- name: RINGQ_IDENTITIES
  value: /etc/ringq-identities
# For commands in the pod, as by kubectl exec.
{{ include "ringq.tokenVariable" . }}
{{- end }}
{{- if and .Values.auth.serviceAccountTokens (not (and .Values.auth.enabled .Values.auth.existingSecret)) }}
{{- fail "auth.serviceAccountTokens: is of no use without auth.existingSecret: the identities that the chart makes have no issuer" }}
{{- end }}
{{- if not .Values.auth.enabled }}
- name: RINGQ_INSECURE
  value: "true"
{{- end }}
- name: RINGQ_REPLICA
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if eq $source "existing" }}
{{- range $key, $value := .Values.settings }}
{{- if $value }}
- name: RINGQ_{{ upper $key }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.tls }}
{{- if .secretName }}
- name: RINGQ_TLS_CERT
  value: /etc/ringq-tls/tls.crt
- name: RINGQ_TLS_KEY
  value: /etc/ringq-tls/tls.key
{{- if .clientCa }}
- name: RINGQ_TLS_CLIENT_CA
  value: /etc/ringq-client-ca/ca.crt
- name: RINGQ_TLS_CLIENT_AUTH
  value: {{ .clientAuth }}
{{- end }}
{{- else if .clientCa }}
{{- fail "tls.clientCa: is of no use without tls.secretName" }}
{{- end }}
{{- end }}
{{- if eq .Values.store "sqlite" }}
- name: RINGQ_DATA_DIR
  value: /data
{{- else if eq $source "environment" }}
{{- $list := list }}
{{- if eq .Values.store "redis" }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "ringq.redisSecretName" . }}
      key: {{ .Values.redis.auth.key }}
{{- end }}
{{- range include "ringq.shards" . | fromJsonArray }}
{{- if eq $.Values.store "redis" }}
{{- $list = append $list (printf "%s=redis://:$(REDIS_PASSWORD)@%s-redis-%s:6379" .name (include "ringq.fullname" $) .name) }}
{{- else }}
{{- $list = append $list (printf "%s=$(SHARD_URL_%s)" .name (upper .name)) }}
- name: SHARD_URL_{{ upper .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secretName }}
      key: {{ default "url" .secretKey }}
{{- end }}
{{- end }}
- name: RINGQ_SHARDS
  value: >-
    {{- range $list }}
    {{ . }}
    {{- end }}
{{- end }}
{{- with .Values.external.tls }}
{{- if and .secretName (ne $.Values.store "sqlite") }}
{{- range $variable, $file := dict "RINGQ_REDIS_CA" .caKey "RINGQ_REDIS_CERT" .certKey "RINGQ_REDIS_KEY" .keyKey }}
{{- if $file }}
- name: {{ $variable }}
  value: /etc/ringq-redis-tls/{{ $file }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A name that is there twice is refused by the API server, or one of the two values is ignored. */}}
{{- define "ringq.extraEnv" -}}
{{- $names := list -}}
{{- range include "ringq.env" . | fromYamlArray }}{{ $names = append $names .name }}{{ end -}}
{{- range .Values.extraEnv -}}
{{- if has .name $names -}}
{{- fail (printf "extraEnv: the variable %s is already set, by the chart or in extraEnv" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- with .Values.extraEnv }}{{ toYaml . }}{{ end -}}
{{- end }}
