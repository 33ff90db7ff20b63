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

{{/*
How a part reaches a Redis that is not the chart's: URL and user from Secrets, passwords and certificates as files, which
may change while the part runs. Takes (dict "root" $ "part" "gateway").
*/}}
{{- define "warmroute.redisEnv" -}}
{{- $redis := .root.Values.redis -}}
{{- if not $redis.enabled }}
- name: WARMROUTE_REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- if $redis.existingSecret.name }}
      name: {{ $redis.existingSecret.name }}
      key: {{ $redis.existingSecret.key }}
      {{- else }}
      name: {{ include "warmroute.fullname" .root }}-redis-url
      key: url
      {{- end }}
{{- $sides := dict "REDIS" (dict "auth" (index $redis.auth .part) "file" "password") "REDIS_SENTINEL" (dict "auth" $redis.auth.sentinel "file" "sentinel-password") -}}
{{- range $name, $side := $sides }}
{{- with $side.auth }}
{{- if .existingSecret }}
{{- if .usernameKey }}
- name: WARMROUTE_{{ $name }}_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .usernameKey }}}
{{- end }}
- name: WARMROUTE_{{ $name }}_PASSWORD_FILE
  value: /etc/warmroute-redis/{{ $side.file }}
{{- end }}
{{- end }}
{{- end }}
{{- with $redis.tls }}
{{- if .existingSecret }}
- name: WARMROUTE_REDIS_TLS_CA_FILE
  value: /etc/warmroute-redis/ca.crt
{{- if .clientCertificate }}
- name: WARMROUTE_REDIS_TLS_CERT_FILE
  value: /etc/warmroute-redis/tls.crt
- name: WARMROUTE_REDIS_TLS_KEY_FILE
  value: /etc/warmroute-redis/tls.key
{{- end }}
{{- end }}
{{- if not .checkHostname }}
- name: WARMROUTE_REDIS_TLS_CHECK_HOSTNAME
  value: "false"
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The volume of those files, if there are any. Takes the same. */}}
{{- define "warmroute.redisVolume" -}}
{{- $redis := .root.Values.redis -}}
{{- $auth := index $redis.auth .part -}}
{{- if and (not $redis.enabled) (or $auth.existingSecret $redis.auth.sentinel.existingSecret $redis.tls.existingSecret) -}}
- name: redis
  projected:
    defaultMode: 0440
    sources:
      {{- with $auth }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret }}
          items: [{key: {{ .passwordKey }}, path: password}]
      {{- end }}
      {{- end }}
      {{- with $redis.auth.sentinel }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret }}
          items: [{key: {{ .passwordKey }}, path: sentinel-password}]
      {{- end }}
      {{- end }}
      {{- with $redis.tls }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret }}
          items:
            - {key: ca.crt, path: ca.crt}
            {{- if .clientCertificate }}
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
            {{- end }}
      {{- end }}
      {{- end }}
{{- end -}}
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
