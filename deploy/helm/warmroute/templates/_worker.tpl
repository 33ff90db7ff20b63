{{/* Probes of the engine: it decides readiness alone; the publisher's troubles only make a worker late. */}}
{{- define "warmroute.engineProbes" -}}
startupProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  failureThreshold: {{ max 1 (div .Values.pool.startupSeconds 5) }}
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* A pod that ends is out of discovery at once, so its preStop is the time in which its requests finish. */}}
{{- define "warmroute.workerLifecycle" -}}
{{- if .Values.pool.drainSeconds -}}
lifecycle:
  preStop:
    sleep:
      seconds: {{ .Values.pool.drainSeconds }}
{{- end -}}
{{- end -}}

{{- define "warmroute.workerResources" -}}
{{- $resources := deepCopy .Values.pool.resources -}}
{{- with .Values.pool.gpu -}}
{{- if .count -}}
{{- $_ := set $resources "limits" (merge (dict .resource (int .count)) (default dict $resources.limits)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* The worker's identity: discovery knows the same UID and the same address. */}}
{{- define "warmroute.workerIdentity" -}}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- name: WARMROUTE_WORKER_WORKER_ID
  valueFrom:
    fieldRef: {fieldPath: metadata.uid}
- name: WARMROUTE_WORKER_ADVERTISE_ADDRESS
  value: $(POD_IP):8100
{{- end -}}

{{- define "warmroute.builtinContainer" -}}
name: worker
image: {{ include "warmroute.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [worker, --config, /etc/warmroute/config.yaml]
env:
  {{- include "warmroute.workerIdentity" . | nindent 2 }}
  {{- with include "warmroute.grpcEnv" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.pool.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8100}
  - {name: admin, containerPort: 8003}
{{ include "warmroute.engineProbes" . }}
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{ include "warmroute.workerLifecycle" . }}
resources:
  {{- include "warmroute.workerResources" . | nindent 2 }}
securityContext:
  {{- include "warmroute.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/warmroute, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- with include "warmroute.grpcMount" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if .Values.pool.modelFiles.volume }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "warmroute.vllmContainer" -}}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "topic" "kv" -}}
{{- $_ := set $events "endpoint" "tcp://*:5557" -}}
{{- $_ := set $events "replay_endpoint" "tcp://*:5558" -}}
{{- $model := coalesce .Values.pool.vllm.model (include "warmroute.modelPath" .) -}}
name: vllm
image: {{ .Values.pool.vllm.image }}
imagePullPolicy: {{ .Values.pool.vllm.pullPolicy }}
args:
  - --model
  - {{ required "pool.engine is vllm: set pool.vllm.model to a Hugging Face name, or pool.modelFiles to a volume with the model" $model | quote }}
  - --served-model-name
  - {{ .Values.pool.model | quote }}
  - --port
  - "8100"
  - --enable-prefix-caching
  # Puts cached_tokens into usage, which the gateway counts against its predictions.
  - --enable-prompt-tokens-details
  - --kv-events-config
  - {{ $events | toJson | quote }}
  {{- range .Values.pool.vllm.args }}
  - {{ . | quote }}
  {{- end }}
env:
  # Everything that vLLM, PyTorch and Triton write goes below HOME, since the image's own files are read-only.
  - {name: HOME, value: /cache}
  - {name: HF_HOME, value: /cache/huggingface}
  - {name: VLLM_CACHE_ROOT, value: /cache/vllm}
  - {name: TORCHINDUCTOR_CACHE_DIR, value: /cache/torchinductor}
  # PyTorch asks for the user's name, which a numeric user does not have.
  - {name: USER, value: vllm}
  {{- with .Values.pool.vllm.huggingFaceToken }}
  {{- if .secret }}
  - name: HF_TOKEN
    valueFrom:
      secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}
  {{- end }}
  {{- end }}
  {{- with .Values.pool.engineKey }}
  {{- if .existingSecret }}
  - name: VLLM_API_KEY
    valueFrom:
      secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}
  {{- end }}
  {{- end }}
  {{- with .Values.pool.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8100}
  - {name: kv-events, containerPort: 5557}
  - {name: kv-replay, containerPort: 5558}
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
  {{- if .Values.pool.modelFiles.volume }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
{{- end -}}

{{/* The slot of the sidecar that is to publish vLLM's events. Off by default: `warmroute agent` does not exist yet. */}}
{{- define "warmroute.agentContainer" -}}
name: agent
image: {{ include "warmroute.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [agent, --config, /etc/warmroute/config.yaml]
env:
  {{- include "warmroute.workerIdentity" . | nindent 2 }}
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
  {{- toYaml .Values.pool.vllm.agent.resources | nindent 2 }}
securityContext:
  {{- include "warmroute.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/warmroute, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- with include "warmroute.grpcMount" . }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}
