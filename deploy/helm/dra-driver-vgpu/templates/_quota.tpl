{{/* Refuses what quotas cannot do without. */}}
{{- define "vgpu.quotaNeeds" -}}
{{- if semverCompare "<1.36-0" .Capabilities.KubeVersion.Version }}
{{- fail "quota.enabled needs MutatingAdmissionPolicy of admissionregistration.k8s.io/v1, which Kubernetes serves from 1.36 on; on 1.34 and 1.35 it is a beta that is off, so set quota.enabled=false there (docs/quotas.md)" }}
{{- end }}
{{- end -}}

{{/* The extended resources that give our GPUs, as a list in CEL. */}}
{{- define "vgpu.quotaExtended" -}}
{{- $names := list -}}
{{- range $class, $values := .Values.deviceClasses -}}
{{- if ne $class "vgpu-monitor" -}}
{{- $names = append $names (printf "deviceclass.resource.kubernetes.io/%s" $class) -}}
{{- with $values.extendedResourceName }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range (.Values.admission).derivedClasses | default list -}}
{{- $names = append $names (printf "deviceclass.resource.kubernetes.io/%s" .) -}}
{{- end -}}
{{- include "vgpu.celTexts" (concat $names ((.Values.quota).extendedResources | default list)) -}}
{{- end -}}

{{/* Of a pod that is created, and its namespace's quota. */}}
{{- define "vgpu.quotaPodVariables" -}}
- name: containers
  expression: object.spec.containers + object.spec.?initContainers.orValue([])
- name: extended
  expression: "{{ include "vgpu.quotaExtended" . }}"
- name: asks
  expression: >-
    object.spec.?resourceClaims.orValue([]).size() > 0
    || variables.containers.exists(c, c.?resources.?limits.orValue({}).exists(k, k in variables.extended))
- name: gated
  expression: object.spec.?schedulingGates.orValue([]).exists(g, g.name == 'dra.vgpu/quota')
- name: isLow
  expression: object.spec.?priorityClassName.orValue('') == 'vgpu-over-budget'
- name: yields
  expression: >-
    params.?status.?budget.?state.orValue('') == 'Spent'
    && params.?spec.?budget.?whenSpent.orValue('Yield') == 'Yield'
{{- end -}}

{{/* Whether an update takes the gate off. */}}
{{- define "vgpu.quotaOpens" -}}
oldObject.spec.?schedulingGates.orValue([]).exists(g, g.name == 'dra.vgpu/quota') && !object.spec.?schedulingGates.orValue([]).exists(g, g.name == 'dra.vgpu/quota')
{{- end -}}
