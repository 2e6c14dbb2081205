{{/*
The admission policy for one kind. Arguments: (list $ kind resource prefix); prefix is the path of the ResourceClaimSpec.

`asks` lists the alternatives of each device request (one for `exactly`), each with its path. Every check maps the asks
to messages, one for each ask or key, which are empty if there is no error. A validation passes if every message is empty;
otherwise it returns the first one that is not. So each message can name the field's path and its value.

Paths and messages are those of driver/api (request.rs and config/), which checks the same again at Prepare. The files in
deploy/admission-cases test both.
*/}}
{{- define "vgpu.claimsPolicy" -}}
{{- $root := index . 0 }}
{{- $kind := index . 1 }}
{{- $resource := index . 2 }}
{{- $spec := index . 3 }}
{{- $derived := $root.Values.admission.derivedClasses }}
{{- $fractions := concat (list "vgpu") $derived }}
{{- $fixed := list "gpu" "vgpu-mig" "vgpu-monitor" "vgpu-slot" }}
{{- $foreign := list }}
{{- range $root.Values.admission.foreignClasses }}
{{- if not (has . (concat $fractions $fixed)) }}{{ $foreign = append $foreign . }}{{ end }}
{{- end }}
{{- $name := printf "%s-%s" (include "vgpu.name" $root) $resource -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "vgpu.labels" $root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        resources: [{{ $resource }}]
        operations: [CREATE, UPDATE]
  matchConditions:
    # Objects created before this policy must stay deletable: removing a finalizer is an update.
    - name: spec-is-new
      expression: request.operation == 'CREATE' || object.spec != oldObject.spec
  variables:
    {{- include "vgpu.asks" $spec | nindent 4 }}
    - name: fractions
      expression: {{ toJson $fractions | replace "\"" "'" | quote }}
    - name: fixed
      expression: {{ toJson $fixed | replace "\"" "'" | quote }}
    {{- if include "vgpu.controllerMode" $root }}
    - name: foreign
      expression: {{ toJson $foreign | replace "\"" "'" | quote }}
    {{- end }}
    # The values that claims may have with the chart's own classes: the class's value, and stricter ones.
    - name: bounds
      expression: >-
        {{ include "vgpu.bounds" $root | nindent 8 | trim }}
    # Classes whose claims have no limit of memory, and what these get.
    - name: limitless
      expression: >-
        {{ include "vgpu.limitless" $root }}

    # Capacity requests. Quantities are already in Kubernetes' form: 1 for 1000m, 512Mi for 0.5Gi.
    - name: capacity
      expression: >-
        variables.asks.map(r, r.map(a, a.ask.?capacity.requests.orValue({}).transformList(key, value,
          a.ask.deviceClassName in variables.fixed
          ? a.at + '.capacity.requests[' + key + ']: class ' + a.ask.deviceClassName
            + ' gives what it gives and takes no capacity requests; remove them, or use class vgpu for a part of a GPU'
          : !(a.ask.deviceClassName in variables.fractions) ? ''
          {{- if include "vgpu.servesDomain" $root }}
          : key.startsWith('dra.vgpu/') && key.substring(9) in a.ask.capacity.requests
          ? a.at + '.capacity.requests[' + key + ']: "' + string(value) + '", and "' + string(a.ask.capacity.requests[key.substring(9)])
            + '" in ' + key.substring(9) + ', are one capacity under two names; keep only ' + key.substring(9)
          {{- else }}
          : key in ['dra.vgpu/memory', 'dra.vgpu/cores', 'dra.vgpu/shares']
          ? a.at + '.capacity.requests[' + key + ']: kube-scheduler before Kubernetes 1.38 finds no GPU for a capacity whose name has the domain dra.vgpu; write '
            + key.substring(9)
          {{- end }}
          : key in {{ include "vgpu.celNames" "memory" }} ? (
              quantity(string(value)).compareTo(quantity('10Ti')) > 0
              ? a.at + '.capacity.requests[' + key + ']: "' + string(value) + '" is more than any GPU has; ask for at most 10Ti'
              : quantity(string(value)).compareTo(quantity('64Mi')) < 0
              ? a.at + '.capacity.requests[' + key + ']: "' + string(value) + '" is less than the smallest share, 64Mi; '
                + (string(value).matches('^([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-6])$') ? 'did you mean ' + string(value) + 'Gi?'
                   : string(value).matches('^[1-9][0-9]{2,5}$') ? 'did you mean ' + string(value) + 'Mi?'
                   : 'ask for at least 64Mi')
              : !quantity(string(value)).isInteger()
              ? a.at + '.capacity.requests[' + key + ']: "' + string(value) + '" is not a whole number; write one without a fraction'
              : '')
          : key in {{ include "vgpu.celNames" "cores" }} ? (
              quantity(string(value)).compareTo(quantity('0')) < 0 || quantity(string(value)).compareTo(quantity('100')) > 0
              || !quantity(string(value)).isInteger()
              ? a.at + '.capacity.requests[' + key + ']: "' + string(value)
                + '" is not a whole percentage of a GPU\'s time; ask for a whole number from 0 to 100, for example 25'
              : '')
          : key in {{ include "vgpu.celNames" "shares" }} ? (
              quantity(string(value)).compareTo(quantity('1')) != 0
              ? a.at + '.capacity.requests[' + key + ']: "' + string(value) + '" is not allowed; a claim always takes one share, so remove the field'
              : '')
          : a.at + '.capacity.requests[' + key + ']: no GPU has this capacity; use memory and cores')))

    # Administrative access is only for monitor devices: on a shared GPU it would be an uncounted share.
    - name: access
      expression: >-
        variables.asks.map(r, r.map(a,
          a.ask.deviceClassName == 'vgpu-monitor' && a.ask.?adminAccess.orValue(false) == false
          ? a.at + '.adminAccess: class vgpu-monitor is for administrative access only; set adminAccess: true, in a namespace with the label resource.kubernetes.io/admin-access: "true"'
          : (a.ask.deviceClassName in variables.fractions || a.ask.deviceClassName in ['gpu', 'vgpu-mig', 'vgpu-slot']) && a.ask.?adminAccess.orValue(false)
          ? a.at + '.adminAccess: true is for class vgpu-monitor; use that class to monitor GPUs, or remove the field'
          : ''))

    {{- $most := include "vgpu.instancesPerClaim" $root | int }}
    {{- if $most }}
    # Where claims make instances, the search for places takes time that grows with a high power of their number. Of the
    # alternatives of a request one is allocated.
    - name: instances
      expression: >-
        variables.asks.map(r, r.map(a, a.ask.deviceClassName in {{ include "vgpu.celTexts" (ternary (concat (list "vgpu-mig") $fractions) (list "vgpu-mig") (eq (($root.Values.mig).instances | default "whole") "shared")) }}
          ? int(a.ask.?count.orValue(1)) : 0)).filter(r, r.size() > 0).map(r, r.max()).sum()
    {{- end }}

    # Only vgpu-controller allocates devices with the allocator's taint.
    - name: tolerations
      expression: >-
        variables.asks.map(r, r.map(a, a.ask.?tolerations.orValue([]).transformList(i, t,
          t.?key.orValue('') == 'dra.vgpu/allocator'
          ? a.at + '.tolerations[' + string(i) + '].key: "dra.vgpu/allocator" marks devices that vgpu-controller allocates; remove the toleration'
          : t.?key.orValue('') == '' && t.?operator.orValue('Equal') == 'Exists'
            && {{ if include "vgpu.controllerMode" $root }}!(a.ask.deviceClassName in variables.foreign){{ else }}(a.ask.deviceClassName in variables.fractions || a.ask.deviceClassName in variables.fixed){{ end }}
          ? a.at + '.tolerations[' + string(i) + ']: tolerates every taint, also that of vgpu-controller\'s devices; set the key of the taint to tolerate'
          : '')))

    {{- include "vgpu.configVariables" (list "variables.devices" (printf "%s.devices" $spec)) | nindent 4 }}

    # Compares configs with the requests to which they apply, for the classes that the chart knows. Each config is read
    # once, and only configs with a restricted value are compared with their requests: 32 configs for 256 alternatives
    # must stay within the cost limit.
    - name: claims
      expression: >-
        variables.configs.filter(c, type(c.p) == map).map(c, {
          'at': dyn(c.at), 'requests': dyn(c.requests),
          'guaranteed': dyn(c.p.?computePolicy.orValue('') == 'Guaranteed'),
          'exclusive': dyn(c.p.?sharing.orValue('') == 'Exclusive'),
          'required': dyn(c.p.?memoryEnforcement.orValue('') == 'Require'),
          'looser': dyn(variables.bounds.transformMap(name, fields, fields.transformList(field, words,
            field == 'memoryPolicy'
            ? (type(c.p.?memoryPolicy.orValue('')) != map || c.p.memoryPolicy.?type.orValue('Hard') in words ? ''
               : 'memoryPolicy: Oversubscribe')
            : field == 'driverCapabilities'
            ? (type(c.p.?driverCapabilities.orValue('')) != list || c.p.driverCapabilities.size() > 4
               || c.p.driverCapabilities.all(w, type(w) != string || w in words) ? ''
               : 'driverCapabilities: ' + c.p.driverCapabilities.join(', '))
            : !(c.p[?field].orValue(dyn('')) in ['Balanced', 'Unlimited', 'High', 'Shared', 'Prefer']) || c.p[field] in words ? '' : field + ': ' + c.p[field]).filter(m, m != ''))
            .transformMap(name, said, said.size() > 0, said[0]))
        }).filter(c, c.guaranteed || c.exclusive || c.required || c.looser.size() > 0)
    - name: requests
      expression: >-
        variables.asks.filter(r, r.size() > 0).transformMapEntry(i, r, {r[0].request[0]: r})
    - name: contradictions
      expression: >-
        variables.claims.map(c,
          (c.requests.size() == 0 ? variables.asks
           : c.requests.map(q, variables.requests[?q.split('/')[0]].orValue([]).filter(a, q in a.request)))
          .map(r, r.map(a, a.ask.deviceClassName in c.looser
            ? c.at + '.' + c.looser[a.ask.deviceClassName] + ' is looser than what class ' + a.ask.deviceClassName
              + ' says; a claim may only tighten it: remove the field, or use a DeviceClass that grants it'
            : c.guaranteed && a.coreless && a.ask.deviceClassName in variables.bounds
            ? c.at + '.computePolicy: Guaranteed caps the share at its cores, and ' + a.at
              + ' asks for 0 cores; ask for capacity cores of at least 1, or set computePolicy to Balanced'
            : c.exclusive && {{ include "vgpu.celAsked" (list "a.ask" "memory") }}.hasValue()
              && a.ask.deviceClassName in variables.fractions
            ? c.at + '.sharing: Exclusive needs the whole GPU, and ' + a.at + ' asks for memory '
              + string({{ include "vgpu.celAsked" (list "a.ask" "memory") }}.value())
              + '; remove the capacity request for memory, or use class vgpu with sharing Shared'
            : c.required && a.ask.deviceClassName in variables.limitless
            ? c.at + {{ include "vgpu.requireWithoutLimit" "' + variables.limitless[a.ask.deviceClassName] + '" }}
            : '')))
  validations:
    - expression: variables.capacity.all(r, r.all(a, a.all(m, m == '')))
      messageExpression: variables.capacity.map(r, r.filter(a, a.exists(m, m != ''))).filter(r, r.size() > 0)[0][0].filter(m, m != '')[0]
    - expression: variables.access.all(r, r.all(m, m == ''))
      messageExpression: variables.access.map(r, r.filter(m, m != '')).filter(r, r.size() > 0)[0][0]
    {{- if $most }}
    - expression: variables.instances <= {{ $most }}
      messageExpression: >-
        '{{ $spec }}.devices.requests: ask for ' + string(variables.instances) + ' instances of GPUs together, and one claim can have {{ $most }}: the search for their places takes too long; divide them among several pods'
    {{- end }}
    - expression: variables.tolerations.all(r, r.all(a, a.all(m, m == '')))
      messageExpression: variables.tolerations.map(r, r.filter(a, a.exists(m, m != ''))).filter(r, r.size() > 0)[0][0].filter(m, m != '')[0]
    {{- include "vgpu.configValidation" $root | nindent 4 }}
    - expression: variables.contradictions.all(c, c.all(r, r.all(m, m == '')))
      messageExpression: string(variables.contradictions.map(c, c.map(r, r.filter(m, m != '')).filter(r, r.size() > 0)).filter(c, c.size() > 0)[0][0][0])
---
{{ include "vgpu.binding" (list $root $name "Deny") }}
{{- end -}}

{{/* The most instances that a claim may ask for; 0: any number. */}}
{{- define "vgpu.instancesPerClaim" -}}
{{- $dynamic := (.Values.mig).dynamic | default "off" | toString }}
{{- (.Values.mig).instancesPerClaim | default (ternary 0 8 (has $dynamic (list "off" "false"))) -}}
{{- end -}}

{{/* CEL: both names of a capacity. From Kubernetes 1.38 on they are one. */}}
{{- define "vgpu.celNames" -}}
['{{ . }}', 'dra.vgpu/{{ . }}']
{{- end -}}

{{/* CEL: the amount of a capacity in an ask, under either name, as an optional. Arguments: (list ask name). */}}
{{- define "vgpu.celAsked" -}}
{{ index . 0 }}.?capacity.?requests[?'{{ index . 1 }}'].or({{ index . 0 }}.?capacity.?requests[?'dra.vgpu/{{ index . 1 }}'])
{{- end -}}

{{/* Not empty if whoever allocates our GPUs takes a capacity's name with the driver's domain for the one without. */}}
{{- define "vgpu.servesDomain" -}}
{{- if or (eq .Values.allocator "controller") (semverCompare ">=1.38.0-0" .Capabilities.KubeVersion.Version) }}true{{ end -}}
{{- end -}}

{{/* Variables `devices` and `asks` of a policy for the kind whose ResourceClaimSpec is at this path. */}}
{{- define "vgpu.asks" -}}
# A variable must not be an optional: in another expression it would be empty, and every check would pass.
- name: devices
  expression: object.{{ . }}.?devices.orValue({})
# null without requests: the API's field has no omitempty.
- name: allRequests
  expression: "variables.devices.?requests.orValue(null) == null ? [] : variables.devices.requests"
- name: asks
  expression: >-
    variables.allRequests.transformList(i, r,
      has(r.exactly)
      ? [{'at': dyn('{{ . }}.devices.requests[' + string(i) + '].exactly'), 'request': dyn([string(r.name)]), 'ask': dyn(r.exactly),
          'coreless': dyn(quantity(string({{ include "vgpu.celAsked" (list "r.exactly" "cores") }}.orValue('0'))).compareTo(quantity('0')) == 0)}]
      : r.?firstAvailable.orValue([]).transformList(j, s,
          {'at': dyn('{{ . }}.devices.requests[' + string(i) + '].firstAvailable[' + string(j) + ']'),
           'request': dyn([string(r.name), string(r.name) + '/' + string(s.name)]), 'ask': dyn(s),
           'coreless': dyn(quantity(string({{ include "vgpu.celAsked" (list "s" "cores") }}.orValue('0'))).compareTo(quantity('0')) == 0)}))
{{- end -}}

{{/*
Warnings about one kind: what is accepted and probably means something else. Arguments as for vgpu.claimsPolicy.
*/}}
{{- define "vgpu.claimsWarnings" -}}
{{- $root := index . 0 }}
{{- $resource := index . 2 }}
{{- $spec := index . 3 }}
{{- $name := printf "%s-%s-warnings" (include "vgpu.name" $root) $resource -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "vgpu.labels" $root | nindent 4 }}
spec:
  # It only warns, so its failure must not refuse claims.
  failurePolicy: Ignore
  matchConstraints:
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        resources: [{{ $resource }}]
        operations: [CREATE]
  matchConditions:
    # Claims that Kubernetes creates from a template, and the templates of translated pods, have no reader.
    - name: by-a-user
      expression: "!has(object.metadata.ownerReferences) && object.metadata.?labels[?'dra.vgpu/translated'].orValue('') == ''"
  variables:
    {{- include "vgpu.asks" $spec | nindent 4 }}
    - name: isExclusive
      expression: >-
        variables.devices.?config.orValue([]).exists(c, c.?opaque.driver.orValue('') == 'dra.vgpu'
        && type(c.opaque.parameters) == map && c.opaque.parameters.?sharing.orValue('') == 'Exclusive')
    - name: memoryless
      expression: >-
        variables.isExclusive ? [] : variables.asks.map(r, r.filter(a, a.ask.deviceClassName == 'vgpu'
        && !{{ include "vgpu.celAsked" (list "a.ask" "memory") }}.hasValue()).map(a, a.at)).filter(r, r.size() > 0)
    - name: decimal
      expression: >-
        variables.asks.map(r, r.filter(a, a.ask.deviceClassName in {{ include "vgpu.celTexts" (prepend $root.Values.admission.derivedClasses "vgpu") }}
        && string({{ include "vgpu.celAsked" (list "a.ask" "memory") }}.orValue('')).matches('^[0-9]+[MGT]$')).map(a,
        {'at': string(a.at), 'value': string({{ include "vgpu.celAsked" (list "a.ask" "memory") }}.value())})).filter(r, r.size() > 0)
  validations:
    {{- with ((index $root.Values.deviceClasses "vgpu").config).sharing | default "Shared" | eq "Shared" }}
    - expression: variables.memoryless.size() == 0
      messageExpression: >-
        variables.memoryless[0][0] + '.capacity.requests[memory]: is missing, so the share takes all memory of a GPU and none else fits beside it; write for example memory: 20Gi, or use class gpu if a whole GPU is meant'
    {{- end }}
    - expression: variables.decimal.size() == 0
      messageExpression: >-
        variables.decimal[0][0].at + '.capacity.requests[memory]: ' + variables.decimal[0][0].value + ' is '
        + (variables.decimal[0][0].value.endsWith('M')
        ? '%.1fMi'.format([quantity(variables.decimal[0][0].value).asApproximateFloat() / 1048576.0])
        : '%.1fGi'.format([quantity(variables.decimal[0][0].value).asApproximateFloat() / 1073741824.0]))
        + '; write ' + variables.decimal[0][0].value + 'i if that is meant'
---
{{ include "vgpu.binding" (list $root $name "Warn") }}
{{- end -}}

{{/*
Variables `configs` and `fields` of a policy: the VgpuConfigs of an object, and the mistakes in each of them.
Arguments: (list holder path); `holder` is CEL for the object with the list `config`, `path` is its path in messages.
*/}}
{{- define "vgpu.configVariables" -}}
{{- $holder := index . 0 }}
{{- $path := index . 1 -}}
# Our opaque parameters, each with its path and the requests to which it applies.
- name: configs
  expression: >-
    {{ $holder }}.?config.orValue([]).transformList(i, c, c.?opaque.driver.orValue('') == 'dra.vgpu',
      {'at': dyn('{{ $path }}.config[' + string(i) + '].opaque.parameters'),
       'requests': dyn(c.?requests.orValue([])), 'p': dyn(c.opaque.parameters)})
- name: fields
  expression: >-
    variables.configs.map(c,
      type(c.p) != map ? [c.at + ': is not an object; see the fields of VgpuConfig']
      : [
        c.p.?apiVersion.orValue('') != 'dra.vgpu/v1alpha1' ? c.at + '.apiVersion: is missing or not what this driver reads; set it to "dra.vgpu/v1alpha1"' : '',
        c.p.?kind.orValue('') != 'VgpuConfig' ? c.at + '.kind: is missing or not what this driver reads; set it to "VgpuConfig"' : ''
      ]
      + c.p.map(k, k in ['apiVersion', 'kind', 'computePolicy', 'priority', 'memoryPolicy', 'memoryEnforcement', 'allocationPolicy', 'sharing', 'reportAs', 'driverCapabilities'] ? ''
          : c.at + {{ include "vgpu.field" "k" }} + ': is not a field of VgpuConfig; use one of apiVersion, kind, computePolicy, priority, memoryPolicy, memoryEnforcement, allocationPolicy, sharing, reportAs, driverCapabilities')
      + {'computePolicy': ['Guaranteed', 'Balanced', 'Unlimited'], 'priority': ['Low', 'High'], 'memoryEnforcement': ['Prefer', 'Require'],
         'allocationPolicy': ['binpack', 'spread', 'numa', 'pcie', 'nvlink', 'whole-gpus', 'first-fit'], 'sharing': ['Shared', 'Exclusive'],
         'reportAs': ['hami', 'koordinator', 'volcano', 'volcano-vgpu', 'gpu-manager', 'kai']}
        .transformList(field, words, !(field in c.p) || c.p[field] in words ? ''
          : c.at + '.' + field + ': ' + (type(c.p[field]) == string ? {{ include "vgpu.quoted" "c.p[field]" }} + ' is not allowed' : 'is not a string') + '; use one of ' + words.join(', '))
      + [c.p.?sharing.orValue('') == 'Exclusive' && c.p.?memoryEnforcement.orValue('') == 'Require'
         ? c.at + {{ include "vgpu.requireWithoutLimit" "an Exclusive GPU" }} : '']
      + (!('driverCapabilities' in c.p) ? []
         : type(c.p.driverCapabilities) != list ? [c.at + '.driverCapabilities: is not a list; write [compute, utility]']
         : c.p.driverCapabilities.size() < 1 || c.p.driverCapabilities.size() > 4
         ? [c.at + '.driverCapabilities: has ' + string(c.p.driverCapabilities.size()) + ' entries; name one to four of compute, utility, video, graphics']
         : c.p.driverCapabilities.transformList(i, w, w in ['compute', 'utility', 'video', 'graphics'] ? ''
           : c.at + '.driverCapabilities[' + string(i) + ']: ' + (type(w) == string ? {{ include "vgpu.quoted" "w" }} + ' is not allowed' : 'is not a string') + '; use one of compute, utility, video, graphics'))
      + (!('memoryPolicy' in c.p) ? []
         : type(c.p.memoryPolicy) != map ? [c.at + '.memoryPolicy: is not an object; write {type: Hard}']
         : c.p.memoryPolicy.map(k, k in ['type', 'hostMemory'] ? '' : c.at + '.memoryPolicy' + {{ include "vgpu.field" "k" }} + ': is not a field of VgpuConfig; use one of type, hostMemory')
           + [c.p.memoryPolicy.?type.orValue('') == 'Hard' ? (
                'hostMemory' in c.p.memoryPolicy ? c.at + '.memoryPolicy.hostMemory: contradicts type Hard, which uses no host memory; remove it, or set type to Oversubscribe' : '')
              : c.p.memoryPolicy.?type.orValue('') != 'Oversubscribe' ? c.at + '.memoryPolicy.type: is missing or not allowed; use one of Hard, Oversubscribe'
              : !('hostMemory' in c.p.memoryPolicy) ? c.at + '.memoryPolicy.hostMemory: is needed with type Oversubscribe; write how much host memory may be used, for example 10Gi'
              : type(c.p.memoryPolicy.hostMemory) != string || !isQuantity(c.p.memoryPolicy.hostMemory)
                || quantity(c.p.memoryPolicy.hostMemory).compareTo(quantity('0')) <= 0
              ? c.at + '.memoryPolicy.hostMemory: is not a positive quantity; write how much host memory may be used, for example 10Gi'
              : !{{ include "vgpu.isWhole" "c.p.memoryPolicy.hostMemory" | replace "\n" " " }}
              ? c.at + '.memoryPolicy.hostMemory: ' + {{ include "vgpu.quoted" "c.p.memoryPolicy.hostMemory" }} + ' is not a whole number; write one without a fraction'
              : quantity(c.p.memoryPolicy.hostMemory).compareTo(quantity('1Pi')) > 0
              ? c.at + '.memoryPolicy.hostMemory: ' + {{ include "vgpu.quoted" "c.p.memoryPolicy.hostMemory" }} + ' is more than 1Pi, which no machine has; write how much host memory may be used, for example 10Gi'
              : '']))
{{- end -}}

{{/*
The admission policy for DeviceClasses: a mistake in the config of a class would refuse every claim of it at Prepare.
*/}}
{{- define "vgpu.classesPolicy" -}}
{{- $name := printf "%s-deviceclasses" (include "vgpu.name" .) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "vgpu.labels" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        resources: [deviceclasses]
        operations: [CREATE, UPDATE]
  matchConditions:
    # As for claims.
    - name: spec-is-new
      expression: request.operation == 'CREATE' || object.spec != oldObject.spec
  variables:
    {{- include "vgpu.configVariables" (list "object.spec" "spec") | nindent 4 }}
  validations:
    {{- include "vgpu.configValidation" . | nindent 4 }}
---
{{ include "vgpu.binding" (list . $name "Deny") }}
{{- end -}}

{{- define "vgpu.configValidation" -}}
- expression: variables.fields.all(c, c.all(m, m == ''))
  messageExpression: variables.fields.map(c, c.filter(m, m != '')).filter(c, c.size() > 0)[0][0]
{{- end -}}

{{/* vgpu.binding (list $ name "Deny") */}}
{{- define "vgpu.binding" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels: {{- include "vgpu.labels" $root | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [{{ index . 2 }}]
{{- end -}}

{{/*
CEL for a user's text, quoted as in driver/api: the API server drops a message of more than 5 KiB or of two lines, and the
user would see the expression instead.
*/}}
{{- define "vgpu.quoted" -}}
strings.quote({{ . }}.size() > 64 ? {{ . }}.substring(0, 64) + '...' : {{ . }})
{{- end -}}

{{/*
CEL: true if a quantity's text is a whole number. isInteger alone rejects 100Ti and 1.5Gi. With a binary unit, a number with n
digits after the point is whole if 5 to the power of n divides these digits.
*/}}
{{- define "vgpu.isWhole" -}}
(quantity({{ . }}).isInteger() || {{ . }}.matches('^[+]?[0-9]+([kMGTPE]|[KMGTPE]i)?$')
|| {{ . }}.matches('^[+]?[0-9]*[.][0-9]{1,9}[KMGTPE]i$')
&& int({{ . }}.substring({{ . }}.indexOf('.') + 1, {{ . }}.size() - 2))
% [1, 5, 25, 125, 625, 3125, 15625, 78125, 390625, 1953125][{{ . }}.size() - {{ . }}.indexOf('.') - 3] == 0)
{{- end -}}

{{/* CEL for the message about memoryEnforcement: Require for something that has no limit. */}}
{{- define "vgpu.requireWithoutLimit" -}}
'.memoryEnforcement: Require asks for the driver\'s limit of a share\'s memory, and {{ . }} has no limit; remove the field, or ask for a part of a GPU (class vgpu)'
{{- end -}}

{{/* A CEL map: a class whose claims have no limit of memory -> what they get. */}}
{{- define "vgpu.limitless" -}}
{{- $classes := list "'vgpu-monitor': 'a monitor'" }}
{{- range $name, $class := .Values.deviceClasses }}
{{- if and $class.create (eq (($class.config | default dict).sharing | default "Shared") "Exclusive") }}
{{- $classes = append $classes (printf "'%s': 'an Exclusive GPU'" $name) }}
{{- end }}
{{- end -}}
{ {{- join ", " $classes -}} }
{{- end -}}

{{/* CEL for a field's name after its object's path. */}}
{{- define "vgpu.field" -}}
({{ . }}.matches('^[A-Za-z0-9_./-]{1,64}$') ? '.' + {{ . }} : '[' + {{ include "vgpu.quoted" . }} + ']')
{{- end -}}

{{/*
A CEL map: class -> field -> values that a claim may have, from the configs of the chart's classes. The order from strict to
loose is the same as in driver/api's config/merge.rs.
*/}}
{{- define "vgpu.bounds" -}}
{{- $classes := list }}
{{- range $name, $class := .Values.deviceClasses }}
{{- if $class.create }}
{{- $config := $class.config | default dict }}
{{- $memory := (get $config "memoryPolicy") | default (dict "type" "Hard") }}
{{- $compute := dict "Guaranteed" "'Guaranteed'" "Balanced" "'Guaranteed', 'Balanced'" "Unlimited" "'Guaranteed', 'Balanced', 'Unlimited'" }}
{{- $priority := dict "Low" "'Low'" "High" "'Low', 'High'" }}
{{- $oversubscribe := dict "Hard" "'Hard'" "Oversubscribe" "'Hard', 'Oversubscribe'" }}
{{- $enforcement := dict "Require" "'Require'" "Prefer" "'Prefer', 'Require'" }}
{{- $sharing := dict "Exclusive" "'Exclusive'" "Shared" "'Shared', 'Exclusive'" }}
{{- $classes = append $classes (printf "'%s': {'computePolicy': [%s], 'priority': [%s], 'memoryPolicy': [%s], 'memoryEnforcement': [%s], 'sharing': [%s], 'driverCapabilities': ['%s']}" $name
      (get $compute ($config.computePolicy | default "Balanced"))
      (get $priority ($config.priority | default "Low"))
      (get $oversubscribe $memory.type)
      (get $enforcement ($config.memoryEnforcement | default "Prefer"))
      (get $sharing ($config.sharing | default "Shared"))
      ($config.driverCapabilities | default (list "compute" "utility") | join "', '")) }}
{{- end }}
{{- end -}}
{ {{- join ",\n" $classes -}} }
{{- end -}}
