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

{{/* The worker's identity: discovery knows the same UID and the same address. Takes the section, WORKER or AGENT. */}}
{{- define "warmroute.workerIdentity" -}}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- name: WARMROUTE_{{ . }}_WORKER_ID
  valueFrom:
    fieldRef: {fieldPath: metadata.uid}
- name: WARMROUTE_{{ . }}_ADVERTISE_ADDRESS
  value: $(POD_IP):8100
{{- end -}}

{{- define "warmroute.builtinContainer" -}}
name: worker
image: {{ include "warmroute.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [worker, --config, /etc/warmroute/config.yaml]
env:
  {{- include "warmroute.workerIdentity" "WORKER" | nindent 2 }}
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
