{{/* API keys and the secret of the cache salts, for gateways alone: files from one Secret. */}}
{{- define "warmroute.tenantsEnv" -}}
{{- with .Values.tenants -}}
{{- if .existingSecret }}
- {name: WARMROUTE_TENANTS_KEYS_FILE, value: /etc/warmroute-tenants/{{ ternary "keys.json" "keys.yaml" (hasSuffix ".json" .keysKey) }}}
{{- if .salts }}
- {name: WARMROUTE_TENANTS_SALT_SECRET_FILE, value: /etc/warmroute-tenants/salt-secret}
{{- else }}
- {name: WARMROUTE_TENANTS_SALTS, value: "false"}
{{- end }}
{{- if .allowUnsalted }}
- {name: WARMROUTE_TENANTS_ALLOW_UNSALTED, value: "true"}
{{- end }}
{{- if ne .engineFields "strip" }}
- {name: WARMROUTE_TENANTS_ENGINE_FIELDS, value: {{ .engineFields }}}
{{- end }}
{{- with .allowedEngineFields }}
- {name: WARMROUTE_TENANTS_ALLOWED_ENGINE_FIELDS, value: {{ toJson . | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "warmroute.tenantsVolume" -}}
{{- with .Values.tenants -}}
{{- if .existingSecret -}}
- name: tenants
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .keysKey }}, path: {{ ternary "keys.json" "keys.yaml" (hasSuffix ".json" .keysKey) }}}
      {{- if .salts }}
      - {key: {{ .saltKey }}, path: salt-secret}
      {{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
