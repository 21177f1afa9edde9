{{- define "ringq.identitiesName" -}}
{{- default (printf "%s-identities" (include "ringq.fullname" .)) .Values.auth.existingSecret -}}
{{- end }}

{{/* Token of the identity `admin`: that of the Secret in the cluster, or else a random one, the same within one rendering. */}}
{{- define "ringq.adminToken" -}}
{{- $auth := .Values.auth -}}
{{- if not (hasKey $auth "resolved") -}}
{{- $data := (lookup "v1" "Secret" .Release.Namespace (include "ringq.identitiesName" .)).data | default dict -}}
{{- $random := printf "rq_%s" (randAlphaNum 43) -}}
{{- $_ := set $auth "resolved" (hasKey $data "token" | ternary (default "" $data.token | b64dec) $random) -}}
{{- end -}}
{{- $auth.resolved -}}
{{- end }}

{{/* Variable with the token of commands in a pod. A Secret of the operator may have none. */}}
{{- define "ringq.tokenVariable" -}}
- name: RINGQ_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "ringq.identitiesName" . }}
      key: token
      optional: true
{{- end }}
