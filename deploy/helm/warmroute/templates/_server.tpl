{{/* A vLLM, SGLang or TensorRT-LLM server, and the agent beside it. */}}

{{- define "warmroute.serverImage" -}}
{{- $server := .Values.pool.server -}}
{{- if and (eq .Values.pool.engine "vllm") (not $server.image) -}}
docker.io/vllm/vllm-openai:v0.32.0
{{- else -}}
{{- required (printf "pool.engine is %s: set pool.server.image to its image" .Values.pool.engine) $server.image -}}
{{- end -}}
{{- end -}}

{{- define "warmroute.serverModel" -}}
{{- coalesce .Values.pool.server.model (include "warmroute.modelPath" .) | required (printf
  "pool.engine is %s: set pool.server.model to a Hugging Face name, or pool.modelFiles to a volume with the model"
  .Values.pool.engine) -}}
{{- end -}}

{{/* Where events are published: with a wildcard, because the server would connect to any other address. */}}
{{- define "warmroute.kvEvents" -}}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "topic" "kv" -}}
{{- $_ := set $events "endpoint" "tcp://*:5557" -}}
{{- $_ := set $events "replay_endpoint" "tcp://*:5558" -}}
{{- if eq .Values.pool.engine "sglang" }}{{ $_ := unset $events "enable_kv_cache_events" }}{{ end -}}
{{- $events | toJson -}}
{{- end -}}

{{/* TensorRT-LLM's options file: blocks are reused and told of, and /metrics says what runs. */}}
{{- define "warmroute.tensorRtLlmOptions" -}}
{{- $cache := dict "enable_block_reuse" true "event_buffer_max_size" 16384 -}}
{{- $options := dict "enable_iter_perf_stats" true "kv_cache_config" $cache -}}
{{- toYaml (mergeOverwrite $options (deepCopy .Values.pool.server.options)) -}}
{{- end -}}

{{/* The command line: a gateway's predictions need the events, and are checked by the cached tokens in `usage`. */}}
{{- define "warmroute.serverCommand" -}}
{{- if eq .Values.pool.engine "vllm" -}}
args:
  - --model
  - {{ include "warmroute.serverModel" . | quote }}
  - --served-model-name
  - {{ .Values.pool.model | quote }}
  - --port
  - "8100"
  - --enable-prefix-caching
  - --enable-prompt-tokens-details
  - --kv-events-config
  - {{ include "warmroute.kvEvents" . | quote }}
{{- else if eq .Values.pool.engine "sglang" -}}
command: [python3, -m, sglang.launch_server]
args:
  - --model-path
  - {{ include "warmroute.serverModel" . | quote }}
  - --served-model-name
  - {{ .Values.pool.model | quote }}
  - --host
  - 0.0.0.0
  - --port
  - "8100"
  - --page-size
  - "64"
  - --enable-metrics
  - --enable-cache-report
  - --kv-events-config
  - {{ include "warmroute.kvEvents" . | quote }}
  {{- if .Values.pool.engineKey.existingSecret }}
  - --api-key
  - $(ENGINE_KEY)
  {{- end }}
{{- else if eq .Values.pool.engine "tensorrt-llm" -}}
command: [trtllm-serve]
args:
  - {{ include "warmroute.serverModel" . | quote }}
  - --served_model_name
  - {{ .Values.pool.model | quote }}
  - --host
  - 0.0.0.0
  - --port
  - "8100"
  - --extra_llm_api_options
  - /etc/warmroute-server/tensorrt-llm.yaml
{{- else -}}
{{- fail (printf "pool.engine is %s: the chart has no command line for it; run it yourself, with pool.engine external"
  .Values.pool.engine) -}}
{{- end -}}
{{- end -}}

{{- define "warmroute.serverContainer" -}}
{{- $engine := .Values.pool.engine -}}
{{- if and (eq $engine "tensorrt-llm") .Values.pool.engineKey.existingSecret -}}
{{- fail "pool.engineKey: TensorRT-LLM asks for no key; leave it out" -}}
{{- end -}}
name: {{ $engine }}
image: {{ include "warmroute.serverImage" . }}
imagePullPolicy: {{ .Values.pool.server.pullPolicy }}
{{ include "warmroute.serverCommand" . }}
  {{- range .Values.pool.server.args }}
  - {{ . | quote }}
  {{- end }}
env:
  # Everything that the server, PyTorch and Triton write goes below HOME, since the image's own files are read-only.
  - {name: HOME, value: /cache}
  - {name: HF_HOME, value: /cache/huggingface}
  - {name: VLLM_CACHE_ROOT, value: /cache/vllm}
  - {name: TORCHINDUCTOR_CACHE_DIR, value: /cache/torchinductor}
  # PyTorch asks for the user's name, which a numeric user does not have.
  - {name: USER, value: {{ $engine }}}
  {{- with .Values.pool.server.huggingFaceToken }}
  {{- if .secret }}
  - name: HF_TOKEN
    valueFrom:
      secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}
  {{- end }}
  {{- end }}
  {{- with .Values.pool.engineKey }}
  {{- if .existingSecret }}
  - name: {{ eq $engine "vllm" | ternary "VLLM_API_KEY" "ENGINE_KEY" }}
    valueFrom:
      secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}
  {{- end }}
  {{- end }}
  {{- with .Values.pool.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8100}
  {{- if ne $engine "tensorrt-llm" }}
  - {name: kv-events, containerPort: 5557}
  - {name: kv-replay, containerPort: 5558}
  {{- end }}
{{ include "warmroute.engineProbes" . }}
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{ include "warmroute.workerLifecycle" . }}
resources:
  {{- include "warmroute.workerResources" . | nindent 2 }}
securityContext:
  {{- include "warmroute.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: cache, mountPath: /cache}
  - {name: shm, mountPath: /dev/shm}
  {{- if eq $engine "tensorrt-llm" }}
  - {name: config, mountPath: /etc/warmroute-server/tensorrt-llm.yaml, subPath: tensorrt-llm.yaml, readOnly: true}
  {{- end }}
  {{- if .Values.pool.modelFiles.volume }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
{{- end -}}

{{/* It starts with the server, whose events it would miss otherwise, and offers the model's tokenizer to gateways. */}}
{{- define "warmroute.agentContainer" -}}
name: agent
image: {{ include "warmroute.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [agent, --config, /etc/warmroute/config.yaml]
env:
  {{- include "warmroute.workerIdentity" "AGENT" | nindent 2 }}
  # Where the server keeps what it downloads.
  - {name: HF_HOME, value: /cache/huggingface}
  {{- with include "warmroute.grpcEnv" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
ports:
  - {name: admin, containerPort: 8003}
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources:
  {{- toYaml .Values.pool.agent.resources | nindent 2 }}
securityContext:
  {{- include "warmroute.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/warmroute, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  - {name: cache, mountPath: /cache, readOnly: true}
  {{- with include "warmroute.grpcMount" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if .Values.pool.engineKey.existingSecret }}
  - {name: engine-key, mountPath: /etc/warmroute-engine, readOnly: true}
  {{- end }}
  {{- if .Values.pool.modelFiles.volume }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
{{- end -}}
