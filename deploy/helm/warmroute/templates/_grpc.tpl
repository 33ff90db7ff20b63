{{/*
TLS and the shared token between the indexer and its workers and gateways: files from Secrets, which may change while
the parts run. The same for all parts, as one `grpc` section is.
*/}}
{{/* The Secret with the token: the user's, or else the chart's own, unless something else is asked for. */}}
{{- define "warmroute.tokenSecret" -}}
{{- with .Values.grpc -}}
{{- if and .open (or .token.existingSecret .tls.existingSecret) -}}
{{- fail "grpc.open is true: it is for an indexer that asks for nothing; leave it out, or grpc.tls and grpc.token" -}}
{{- end -}}
{{- if .token.existingSecret -}}
{{- .token.existingSecret -}}
{{- else if not (or .open .tls.existingSecret) -}}
{{- include "warmroute.fullname" $ -}}-grpc-token
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The token of the chart's own: as it is in the cluster, drawn where it is not there. */}}
{{- define "warmroute.ownToken" -}}
{{- $known := lookup "v1" "Secret" .Release.Namespace (printf "%s-grpc-token" (include "warmroute.fullname" .)) -}}
{{- dig "data" "token" (randAlphaNum 48 | b64enc) (default dict $known) -}}
{{- end -}}

{{- define "warmroute.grpcEnv" -}}
{{- if .Values.grpc.tls.existingSecret }}
- {name: WARMROUTE_GRPC_TLS_CA_FILE, value: /etc/warmroute-grpc/ca.crt}
- {name: WARMROUTE_GRPC_TLS_CERT_FILE, value: /etc/warmroute-grpc/tls.crt}
- {name: WARMROUTE_GRPC_TLS_KEY_FILE, value: /etc/warmroute-grpc/tls.key}
{{- end }}
{{- if .Values.grpc.tls.serverName }}
- {name: WARMROUTE_GRPC_TLS_SERVER_NAME, value: {{ .Values.grpc.tls.serverName | quote }}}
{{- end }}
{{- if include "warmroute.tokenSecret" . }}
- {name: WARMROUTE_GRPC_TOKEN_FILE, value: /etc/warmroute-grpc/token}
{{- end }}
{{- end -}}

{{- define "warmroute.grpcVolume" -}}
{{- $token := include "warmroute.tokenSecret" . -}}
{{- if or .Values.grpc.tls.existingSecret $token -}}
- name: grpc
  projected:
    defaultMode: 0440
    sources:
      {{- if .Values.grpc.tls.existingSecret }}
      - secret:
          name: {{ .Values.grpc.tls.existingSecret }}
          items: [{key: ca.crt, path: ca.crt}, {key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
      {{- end }}
      {{- if $token }}
      - secret:
          name: {{ $token }}
          items: [{key: {{ empty .Values.grpc.token.existingSecret | ternary "token" .Values.grpc.token.key }}, path: token}]
      {{- end }}
{{- end -}}
{{- end -}}

{{- define "warmroute.grpcMount" -}}
{{- if include "warmroute.grpcVolume" . -}}
- {name: grpc, mountPath: /etc/warmroute-grpc, readOnly: true}
{{- end -}}
{{- end -}}
