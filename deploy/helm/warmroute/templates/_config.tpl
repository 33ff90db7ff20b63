{{/*
The configuration file, one template a section. A part reads its own section and `redis`, so each pod template carries
a checksum of those alone: a new setting of the gateway must not restart workers, whose caches would be lost.
Sections are built as dictionaries, so that quoting is toYaml's business.
*/}}

{{- define "warmroute.config.redis" -}}
{{- if .Values.redis.enabled -}}
redis:
  url: redis://{{ include "warmroute.fullname" . }}-redis:6379/0
{{- end -}}
{{- end -}}

{{/* The model's folder in the worker; empty where only the server knows it. */}}
{{- define "warmroute.modelPath" -}}
{{- if .Values.pool.modelFiles.volume -}}
{{- printf "/models/%s" .Values.pool.modelFiles.path | trimSuffix "/" -}}
{{- else if eq .Values.pool.engine "builtin" -}}
/opt/warmroute/models/builtin
{{- end -}}
{{- end -}}

{{/* What the schema cannot know: settings that contradict other values of the chart. */}}
{{- define "warmroute.checkPoolConfig" -}}
{{- $config := .Values.pool.config -}}
{{- if ne .Values.pool.engine "external" -}}
{{- range list "engine" "upstream_tls" -}}
{{- if hasKey $config . -}}
{{- fail (printf "pool.config.%s is %v: it describes engines of yours; leave it out, or set pool.engine to external"
  . (get $config . | toJson)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $config.tokenizer .Values.pool.modelFiles.volume -}}
{{- fail (printf "pool.config.tokenizer is %q, but pool.modelFiles.volume has a tokenizer too; leave one of them out"
  $config.tokenizer) -}}
{{- end -}}
{{- end -}}

{{- define "warmroute.config.gateway" -}}
{{- $discovery := dict "namespace" .Release.Namespace "selector" (include "warmroute.poolSelector" .) "port" 8100 -}}
{{- if eq .Values.pool.engine "external" -}}
{{- $selector := .Values.pool.external.selector
  | required "pool.engine is external: set pool.external.selector to the labels of the engines' pods" -}}
{{- $discovery = dict "namespace" .Release.Namespace "selector" $selector "port" (int .Values.pool.external.port) -}}
{{- end -}}
{{- $pool := dict "name" .Values.pool.name "model" .Values.pool.model "policy" .Values.pool.policy -}}
{{- if not (kindIs "invalid" .Values.pool.pinning) }}{{ $_ := set $pool "pinning" .Values.pool.pinning }}{{ end -}}
{{- $_ := set $pool "kubernetes" $discovery -}}
{{- /* What the pods run is known here; what they say of it is not taken. */ -}}
{{- if ne .Values.pool.engine "external" }}{{ $_ := set $pool "engine" .Values.pool.engine }}{{ end -}}
{{- /* Without it the gateway takes the files that the workers offer. */ -}}
{{- if .Values.pool.modelFiles.volume }}{{ $_ := set $pool "model_path" (include "warmroute.modelPath" .) }}{{ end -}}
{{- if .Values.pool.engineKey.existingSecret -}}
{{- $_ := set $pool "upstream_key_file" "/etc/warmroute-engine/key" -}}
{{- end -}}
{{- include "warmroute.checkPoolConfig" . -}}
{{- $pool = mergeOverwrite (deepCopy .Values.pool.config) $pool -}}
{{- $section := dict "host" "0.0.0.0" "port" 8000 "admin_host" "0.0.0.0" "admin_port" 8001 -}}
{{- $_ := set $section "indexers" (list (printf "%s-indexer:50051" (include "warmroute.fullname" .))) -}}
{{- $_ := set $section "drain_seconds" .Values.gateway.drainSeconds -}}
{{- $_ := set $section "pools" (list $pool) -}}
{{- toYaml (dict "gateway" (mergeOverwrite (deepCopy .Values.gateway.config) $section)) -}}
{{- end -}}

{{- define "warmroute.config.indexer" -}}
{{- $section := dict "host" "0.0.0.0" "port" 50051 "admin_host" "0.0.0.0" "admin_port" 8002 -}}
{{- if .Values.grpc.open }}{{ $_ := set $section "open" true }}{{ end -}}
{{- toYaml (dict "indexer" (mergeOverwrite (deepCopy .Values.indexer.config) $section)) -}}
{{- end -}}

{{/* The section of what publishes: the built-in worker, the agent beside a server, or nothing of the chart's. */}}
{{- define "warmroute.config.worker" -}}
{{- $engine := .Values.pool.engine -}}
{{- $section := dict "admin_host" "0.0.0.0" "admin_port" 8003 -}}
{{- $_ := set $section "indexer" (printf "%s-indexer:50051" (include "warmroute.fullname" .)) -}}
{{- $_ := set $section "pool" .Values.pool.name -}}
{{- $_ := set $section "model" .Values.pool.model -}}
{{- $_ := set $section "index_block_tokens" (int .Values.pool.indexBlockTokens) -}}
{{- with include "warmroute.modelPath" . }}{{ $_ := set $section "model_path" . }}{{ end -}}
{{- if eq $engine "builtin" -}}
{{- $_ := merge $section (dict "host" "0.0.0.0" "port" 8100) -}}
{{- if .Values.pool.gpu.count }}{{ $_ := set $section "device" "cuda" }}{{ end -}}
{{- toYaml (dict "worker" (mergeOverwrite (deepCopy .Values.pool.builtin.config) $section)) -}}
{{- else if ne $engine "external" -}}
{{- $_ := merge $section (dict "engine" $engine "engine_url" "http://127.0.0.1:8100") -}}
{{- if .Values.pool.engineKey.existingSecret -}}
{{- $_ := set $section "engine_key_file" "/etc/warmroute-engine/key" -}}
{{- end -}}
{{- toYaml (dict "agent" (mergeOverwrite (deepCopy .Values.pool.agent.config) $section)) -}}
{{- end -}}
{{- end -}}
