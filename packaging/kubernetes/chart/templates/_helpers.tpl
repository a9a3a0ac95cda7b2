{{/* Name of all objects. */}}
{{- define "evenkeel.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the IngressClass. */}}
{{- define "evenkeel.ingressClass" -}}
{{- .Values.ingress.class | default (include "evenkeel.name" .) -}}
{{- end -}}

{{/* Labels that select the pods. */}}
{{- define "evenkeel.labels" -}}
app.kubernetes.io/name: evenkeel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Secret with the token of the admin API. */}}
{{- define "evenkeel.secret" -}}
{{- .Values.admin.secret | default (printf "%s-admin" (include "evenkeel.name" .)) -}}
{{- end -}}

{{/* "true" if clients come through a service. */}}
{{- define "evenkeel.hasService" -}}
{{- if kindIs "invalid" .Values.service.enabled -}}
{{- eq .Values.kind "Deployment" -}}
{{- else -}}
{{- .Values.service.enabled -}}
{{- end -}}
{{- end -}}
