{{/*
Files of gateways alone, from Secrets that may change while they run: the public port's certificate, the admin port's token,
the engines' key;
and volumes of the user's, for settings that name files.
*/}}
{{- define "warmroute.gatewayEnv" -}}
{{- if .Values.gateway.tls.existingSecret }}
- {name: WARMROUTE_GATEWAY_TLS_CERT_FILE, value: /etc/warmroute-tls/tls.crt}
- {name: WARMROUTE_GATEWAY_TLS_KEY_FILE, value: /etc/warmroute-tls/tls.key}
{{- end }}
{{- if .Values.gateway.adminToken.existingSecret }}
- {name: WARMROUTE_GATEWAY_ADMIN_TOKEN_FILE, value: /etc/warmroute-admin/token}
{{- end }}
{{- end -}}

{{- define "warmroute.gatewayMounts" -}}
{{- if .Values.gateway.adminToken.existingSecret }}
- {name: admin-token, mountPath: /etc/warmroute-admin, readOnly: true}
{{- end }}
{{- if .Values.gateway.tls.existingSecret }}
- {name: tls, mountPath: /etc/warmroute-tls, readOnly: true}
{{- end }}
{{- if .Values.pool.engineKey.existingSecret }}
- {name: engine-key, mountPath: /etc/warmroute-engine, readOnly: true}
{{- end }}
{{- with .Values.gateway.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "warmroute.gatewayVolumes" -}}
{{- with .Values.gateway.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}
{{- with .Values.gateway.adminToken }}
{{- if .existingSecret }}
- name: admin-token
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: token}]
{{- end }}
{{- end }}
{{- with include "warmroute.engineKeyVolume" . }}
{{ . }}
{{- end }}
{{- with .Values.gateway.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The engines' key, for gateways and agents. */}}
{{- define "warmroute.engineKeyVolume" -}}
{{- with .Values.pool.engineKey }}
{{- if .existingSecret -}}
- name: engine-key
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: key}]
{{- end }}
{{- end }}
{{- end -}}
