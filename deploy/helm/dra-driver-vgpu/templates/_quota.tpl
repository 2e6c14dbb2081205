{{/* Fails if something that quotas need is missing. */}}
{{- define "vgpu.quotaNeeds" -}}
{{- if semverCompare "<1.36-0" .Capabilities.KubeVersion.Version }}
{{- fail "quota.enabled needs MutatingAdmissionPolicy of admissionregistration.k8s.io/v1, which Kubernetes serves from 1.36 on; on 1.34 and 1.35 it is a beta that is off, so set quota.enabled=false there (docs/quotas.md)" }}
{{- end }}
{{- end -}}

{{/* The extended resources that give our GPUs, as a list in CEL, without the names that every class has by default. */}}
{{- define "vgpu.quotaExtended" -}}
{{- $names := list -}}
{{- range $class, $values := .Values.deviceClasses -}}
{{- if ne $class "vgpu-monitor" -}}
{{- with $values.extendedResourceName }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- include "vgpu.celTexts" (concat $names ((.Values.quota).extendedResources | default list)) -}}
{{- end -}}

{{/* Selects the namespaces with a quota, by label. An API server knows labels before it answers requests, but our own kinds
only half a minute after its start, and until then a policy that uses one would refuse every pod of the cluster. */}}
{{- define "vgpu.quotaNamespaces" -}}
namespaceSelector:
  matchExpressions:
    - {key: dra.vgpu/quota, operator: Exists}
{{- end -}}

{{/* Variables of a pod that is created, and of its namespace. */}}
{{- define "vgpu.quotaPodVariables" -}}
- name: containers
  expression: >-
    {{ include "vgpu.celContainers" . }}
- name: extended
  expression: "{{ include "vgpu.quotaExtended" . }}"
- name: asks
  expression: >-
    object.spec.?resourceClaims.orValue([]).size() > 0
    || variables.containers.exists(c, c.?resources.?limits.orValue({}).exists(k,
      k.startsWith('deviceclass.resource.kubernetes.io/') || k in variables.extended))
- name: gated
  expression: object.spec.?schedulingGates.orValue([]).exists(g, g.name == 'dra.vgpu/quota')
- name: isLow
  expression: object.spec.?priorityClassName.orValue('') == 'vgpu-over-budget'
- name: yields
  expression: "namespaceObject.metadata.?labels[?'dra.vgpu/quota'].orValue('') == 'OverBudget'"
{{- end -}}

{{/* The rules of a quota's spec, as in vgpu_quota's Spec. `at` is its path in messages, and `from` the expression that reads it. */}}
{{- define "vgpu.quotaSpecVariables" -}}
- name: spec
  expression: {{ .from }}
- name: hard
  expression: variables.spec.?hard.orValue({})
- name: budget
  expression: variables.spec.?budget.orValue({})
- name: unknown
  expression: >-
    variables.spec.filter(k, !(k in ['hard', 'budget', 'backfill'])).map(k, '{{ .at }}' + {{ include "vgpu.field" "k" }} + ': unknown field; use hard, budget and backfill')
    + variables.hard.filter(k, !(k in ['memory', 'cores', 'gpus', 'shares', 'computeSlices'])).map(k, '{{ .at }}.hard' + {{ include "vgpu.field" "k" }} + ': unknown field; use memory, cores, gpus, shares and computeSlices')
    + variables.budget.filter(k, !(k in ['gpuHours', 'every', 'whenSpent'])).map(k, '{{ .at }}.budget' + {{ include "vgpu.field" "k" }} + ': unknown field; use gpuHours, every and whenSpent')
- name: memory
  expression: "'memory' in variables.hard ? string(variables.hard.memory) : '0'"
- name: cores
  expression: "'cores' in variables.hard ? string(variables.hard.cores) : '0'"
- name: gpus
  expression: "'gpus' in variables.hard ? string(variables.hard.gpus) : '0'"
- name: shares
  expression: "'shares' in variables.hard ? string(variables.hard.shares) : '0'"
- name: computeSlices
  expression: "'computeSlices' in variables.hard ? string(variables.hard.computeSlices) : '0'"
- name: hours
  expression: "'gpuHours' in variables.budget ? string(variables.budget.gpuHours) : '0'"
- name: every
  expression: "'every' in variables.budget ? string(variables.budget.every) : '1d'"
- name: when
  expression: "'whenSpent' in variables.budget ? string(variables.budget.whenSpent) : 'Yield'"
- name: memoryMistake
  expression: >-
    !isQuantity(variables.memory)
    ? (variables.memory.matches('^[0-9]+([.][0-9]+)? *[kKmMgGtT][iI]?([bB]|[bB]ytes?)?$')
      ? ' is not a quantity; did you mean ' + variables.memory.find('^[0-9]{1,19}([.][0-9]{1,9})?') + variables.memory.find('[kKmMgGtT]').upperAscii() + 'i?'
      : ' is not a quantity; write a whole number with a unit, for example 80Gi')
    : quantity(variables.memory).compareTo(quantity('0')) == 0 ? ''
    : quantity(variables.memory).compareTo(quantity('64Mi')) < 0
    ? (variables.memory.matches('^([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-6])$')
      ? ' is less than the smallest share, 64Mi; did you mean ' + variables.memory + 'Gi?'
      : variables.memory.matches('^[1-9][0-9]{2,5}$')
      ? ' is less than the smallest share, 64Mi; did you mean ' + variables.memory + 'Mi?'
      : ' is less than the smallest share, 64Mi; write at least 64Mi, or 0 for none')
    : quantity(variables.memory).compareTo(quantity('4Ei')) > 0
    ? ' is more than the 4Ei that a quota can count; leave the field out for no ceiling'
    : {{ include "vgpu.isWhole" "variables.memory" | replace "\n" " " }} ? ''
    : ' is not a whole number of bytes; write a whole number of a smaller unit, for example 1536Mi for 1.5Gi'
- name: minutes
  expression: >-
    !variables.every.matches('^[0-9]{1,6}[mhd]$') ? 0
    : int(variables.every.substring(0, variables.every.size() - 1))
      * (variables.every.endsWith('m') ? 1 : variables.every.endsWith('h') ? 60 : 1440)
{{- end -}}

{{- define "vgpu.quotaSpecValidations" -}}
- expression: variables.unknown.size() == 0
  messageExpression: variables.unknown[0]
- expression: variables.memoryMistake == ''
  messageExpression: "'{{ .at }}.hard.memory: ' + {{ include "vgpu.quoted" "variables.memory" }} + variables.memoryMistake"
- expression: isQuantity(variables.cores) && quantity(variables.cores).isInteger() && quantity(variables.cores).compareTo(quantity('0')) >= 0
  messageExpression: "'{{ .at }}.hard.cores: ' + {{ include "vgpu.quoted" "variables.cores" }} + ' is not a number of percent of a GPU; write a whole number, for example 150'"
- expression: isQuantity(variables.gpus) && quantity(variables.gpus).compareTo(quantity('0')) >= 0 && quantity(variables.gpus).compareTo(quantity('1G')) < 0
  messageExpression: "'{{ .at }}.hard.gpus: ' + {{ include "vgpu.quoted" "variables.gpus" }} + ' is not a number of GPUs; write a number, for example \"1.5\"'"
- expression: isQuantity(variables.shares) && quantity(variables.shares).isInteger() && quantity(variables.shares).compareTo(quantity('0')) >= 0
  messageExpression: "'{{ .at }}.hard.shares: ' + {{ include "vgpu.quoted" "variables.shares" }} + ' is not a number of shares; write a whole number, for example 8'"
- expression: isQuantity(variables.computeSlices) && quantity(variables.computeSlices).compareTo(quantity('0')) >= 0 && quantity(variables.computeSlices).compareTo(quantity('1G')) < 0
  messageExpression: "'{{ .at }}.hard.computeSlices: ' + {{ include "vgpu.quoted" "variables.computeSlices" }} + ' is not a number of compute slices; write a number, for example 7'"
- expression: "!has(variables.spec.budget) || 'gpuHours' in variables.budget"
  message: "{{ .at }}.budget.gpuHours: missing; write the GPU hours of each period, for example 100"
- expression: isQuantity(variables.hours) && quantity(variables.hours).compareTo(quantity('0')) >= 0 && quantity(variables.hours).compareTo(quantity('10M')) <= 0
  messageExpression: "'{{ .at }}.budget.gpuHours: ' + {{ include "vgpu.quoted" "variables.hours" }} + ' is not a number of GPU hours from 0 to 10M; write a number, for example 100'"
- expression: "!has(variables.spec.budget) || 'every' in variables.budget"
  message: "{{ .at }}.budget.every: missing; write how often the hours begin anew, for example 7d"
- expression: variables.minutes >= 1 && variables.minutes <= 527040
  messageExpression: "'{{ .at }}.budget.every: ' + {{ include "vgpu.quoted" "variables.every" }} + ' is not a time from 1m to 366d; write minutes, hours or days, for example 24h or 7d'"
- expression: variables.when in ['Yield', 'Hold']
  messageExpression: "'{{ .at }}.budget.whenSpent: ' + {{ include "vgpu.quoted" "variables.when" }} + ' is none of Yield, Hold'"
{{- end -}}

{{/* True if an update removes the gate. */}}
{{- define "vgpu.quotaOpens" -}}
oldObject.spec.?schedulingGates.orValue([]).exists(g, g.name == 'dra.vgpu/quota') && !object.spec.?schedulingGates.orValue([]).exists(g, g.name == 'dra.vgpu/quota')
{{- end -}}
