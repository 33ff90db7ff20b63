{{- define "warmroute.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Room is left for the longest suffix of an object's name: 63 is the limit of a Service's. */}}
{{- define "warmroute.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "warmroute.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "warmroute.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "warmroute.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* Labels of every object. Takes (dict "root" $ "component" "gateway"). */}}
{{- define "warmroute.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: warmroute
{{ include "warmroute.selectorLabels" . }}
{{- end -}}

{{/* By which selectors find pods. Pods carry no more: a version among their labels would restart them with each chart. */}}
{{- define "warmroute.selectorLabels" -}}
app.kubernetes.io/name: {{ include "warmroute.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The label selector by which gateways discover the pool's workers. */}}
{{- define "warmroute.poolSelector" -}}
{{- printf "app.kubernetes.io/instance=%s,app.kubernetes.io/component=worker,warmroute.dev/pool=%s" .Release.Name .Values.pool.name -}}
{{- end -}}

{{- define "warmroute.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "warmroute.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods go. Takes (dict "root" $ "component" "gateway" "values" .Values.gateway). */}}
{{- define "warmroute.scheduling" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "warmroute.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The environment variable with Redis's URL, where the file does not hold it. */}}
{{- define "warmroute.redisEnv" -}}
{{- if not .Values.redis.enabled }}
- name: WARMROUTE_REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- if .Values.redis.existingSecret.name }}
      name: {{ .Values.redis.existingSecret.name }}
      key: {{ .Values.redis.existingSecret.key }}
      {{- else }}
      name: {{ include "warmroute.fullname" . }}-redis-url
      key: url
      {{- end }}
{{- end }}
{{- end -}}

{{/* Probes of a part with an admin server. */}}
{{- define "warmroute.adminProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}
