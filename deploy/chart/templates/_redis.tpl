{{- define "ringq.redisConf" -}}
port 6379
dir /data
protected-mode yes
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
auto-aof-rewrite-min-size 512mb
save ""
maxmemory-policy noeviction
{{- end }}

{{/* maxmemory in MiB. Argument: (list $ SHARD). */}}
{{- define "ringq.redisMaxmemory" -}}
{{- $redis := (first .).Values.redis -}}
{{- $limit := (default $redis.resources (last .).resources).limits.memory -}}
{{- $number := regexFind "^[0-9]+" $limit | int64 -}}
{{- $mib := hasSuffix "Gi" $limit | ternary (mul $number 1024) $number -}}
{{- div (mul $mib (int64 $redis.maxmemoryPercent)) 100 -}}
{{- end }}
