{{/*
TLS and the shared token between the indexer and its workers and gateways: files from Secrets, which may change while
the parts run. The same for all parts, as one `grpc` section is.
*/}}
{{- define "warmroute.grpcEnv" -}}
{{- if .Values.grpc.tls.existingSecret }}
- {name: WARMROUTE_GRPC_TLS_CA_FILE, value: /etc/warmroute-grpc/ca.crt}
- {name: WARMROUTE_GRPC_TLS_CERT_FILE, value: /etc/warmroute-grpc/tls.crt}
- {name: WARMROUTE_GRPC_TLS_KEY_FILE, value: /etc/warmroute-grpc/tls.key}
{{- end }}
{{- if .Values.grpc.tls.serverName }}
- {name: WARMROUTE_GRPC_TLS_SERVER_NAME, value: {{ .Values.grpc.tls.serverName | quote }}}
{{- end }}
{{- if .Values.grpc.token.existingSecret }}
- {name: WARMROUTE_GRPC_TOKEN_FILE, value: /etc/warmroute-grpc/token}
{{- end }}
{{- end -}}

{{- define "warmroute.grpcVolume" -}}
{{- if or .Values.grpc.tls.existingSecret .Values.grpc.token.existingSecret -}}
- name: grpc
  projected:
    defaultMode: 0440
    sources:
      {{- if .Values.grpc.tls.existingSecret }}
      - secret:
          name: {{ .Values.grpc.tls.existingSecret }}
          items: [{key: ca.crt, path: ca.crt}, {key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
      {{- end }}
      {{- if .Values.grpc.token.existingSecret }}
      - secret:
          name: {{ .Values.grpc.token.existingSecret }}
          items: [{key: {{ .Values.grpc.token.key }}, path: token}]
      {{- end }}
{{- end -}}
{{- end -}}

{{- define "warmroute.grpcMount" -}}
{{- if include "warmroute.grpcVolume" . -}}
- {name: grpc, mountPath: /etc/warmroute-grpc, readOnly: true}
{{- end -}}
{{- end -}}
