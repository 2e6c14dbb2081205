{{- define "vgpu.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "vgpu.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* vgpu.selector (list . "plugin") */}}
{{- define "vgpu.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* vgpu.image (list . .Values.images.plugin) */}}
{{- define "vgpu.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- index . 1 }}:{{ $root.Values.images.tag | default $root.Chart.AppVersion -}}
{{- end -}}

{{/* The driver root on the node: with softGpu.gpus the folder in which the software GPU's libraries are put. */}}
{{- define "vgpu.driverRoot" -}}
{{- if (.Values.softGpu).gpus }}/var/lib/soft-gpu/driver{{ else }}{{ .Values.driverRoot }}{{ end -}}
{{- end -}}

{{/* The folder of the software GPU's state; empty: the GPUs are real. */}}
{{- define "vgpu.softGpuState" -}}
{{- with (.Values.softGpu).state }}{{ . }}{{ else }}{{ if (.Values.softGpu).gpus }}/var/lib/soft-gpu/state{{ end }}{{ end -}}
{{- end -}}

{{/* The imagePullSecrets of both pods. */}}
{{- define "vgpu.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "vgpu.pluginAccount" -}}
{{ include "vgpu.name" . }}-plugin
{{- end -}}

{{- define "vgpu.controllerAccount" -}}
{{ include "vgpu.name" . }}-controller
{{- end -}}

{{/* "controller" if vgpu-controller allocates, or releases its former allocations; else empty. */}}
{{- define "vgpu.controllerMode" -}}
{{- if ne .Values.allocator "scheduler" }}controller{{ end -}}
{{- end -}}

{{/* The dialects whose pods are translated, separated by commas; empty for none. With `helm upgrade --reuse-values` the
values come from the old chart, which may not have `translate`. */}}
{{- define "vgpu.dialects" -}}
{{- (.Values.translate).dialects | default list | join "," -}}
{{- end -}}

{{/* Not empty if the controller does what pods wait for, so that it needs a standby. */}}
{{- define "vgpu.standby" -}}
{{- if or (include "vgpu.controllerMode" .) (include "vgpu.dialects" .) (.Values.quota).enabled }}standby{{ end -}}
{{- end -}}

{{/* Not empty if replicas of the controller elect a leader: one writes the VgpuUsages, too. */}}
{{- define "vgpu.elects" -}}
{{- if or (include "vgpu.standby" .) (.Values.usage).enabled }}elects{{ end -}}
{{- end -}}

{{/* The Service, the Secret and the MutatingWebhookConfiguration. */}}
{{- define "vgpu.webhook" -}}
{{ include "vgpu.name" . }}-webhook
{{- end -}}

{{/* A list of texts in CEL. */}}
{{- define "vgpu.celTexts" -}}
[{{ range $at, $text := . }}{{ if $at }}, {{ end }}'{{ $text }}'{{ end }}]
{{- end -}}

{{/* CEL: the containers of a pod, init containers too. A pod without spec.containers, or with null there, has none: the API
server itself refuses it. */}}
{{- define "vgpu.celContainers" -}}
((object.spec.?containers.orValue(null) == null ? [] : object.spec.containers) + object.spec.?initContainers.orValue([]))
{{- end -}}

{{/* The resource names of each dialect, including the names that the cluster chose, as JSON. */}}
{{- define "vgpu.asked" -}}
{{- $all := dict
  "hami" (list "nvidia.com/gpu" "nvidia.com/gpumem" "nvidia.com/gpumem-percentage" "nvidia.com/gpucores")
  "koordinator" (list "koordinator.sh/gpu" "koordinator.sh/gpu.shared" "koordinator.sh/gpu-core" "koordinator.sh/gpu-memory" "koordinator.sh/gpu-memory-ratio")
  "volcano" (list "volcano.sh/gpu-memory" "volcano.sh/gpu-number")
  "volcano-vgpu" (list "volcano.sh/vgpu-number" "volcano.sh/vgpu-memory" "volcano.sh/vgpu-memory-percentage" "volcano.sh/vgpu-cores")
  "gpu-manager" (list "tencent.com/vcuda-core" "tencent.com/vcuda-memory")
}}
{{- $named := dict }}
{{- range $dialect, $keys := $all }}
{{- range $chosen, $known := ($.Values.translate).resourceNames }}
{{- if has $known $keys }}{{ $keys = append $keys $chosen }}{{ end }}
{{- end }}
{{- $_ := set $named $dialect $keys }}
{{- end }}
{{- $named | toJson -}}
{{- end -}}

{{/* KAI's annotations of a pod, as JSON. Each of them except the last is a request for a GPU. */}}
{{- define "vgpu.askedAnnotations" -}}
{{- list "gpu-fraction" "gpu-memory" "gpu-fraction-num-devices" "gpu-fraction-container-name" | toJson -}}
{{- end -}}
