{{- define "vgpu.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "vgpu.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* vgpu.selector (list . "plugin") */}}
{{- define "vgpu.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* vgpu.unowned (list . "client"): not empty if the image would be pulled by a name that nobody owns on Docker Hub yet: whoever
takes it would get a privileged container on every node. */}}
{{- define "vgpu.unowned" -}}
{{- $images := (index . 0).Values.images -}}
{{- $part := index . 1 -}}
{{- $name := printf "%s/%s" (trimSuffix "/" ($images.registry | default "")) (get $images $part) -}}
{{- if and (not (get ($images.digests | default dict) $part)) (ne $images.pullPolicy "Never") (regexMatch "^([a-z0-9-]+[.])?docker[.]io/dra-driver-vgpu/" $name) }}unowned{{ end -}}
{{- end -}}

{{/* vgpu.image (list . "plugin"): the image of images.plugin, images.controller, images.softGpu or images.client. Never a name that the container runtime
completes by itself: what it would pull is Docker Hub's. */}}
{{- define "vgpu.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $part := index . 1 -}}
{{- $registry := trimSuffix "/" ($images.registry | default "") -}}
{{- $repository := get $images $part -}}
{{- $digest := get ($images.digests | default dict) $part -}}
{{- $own := "For images that were imported on every node (ctr -n k8s.io images import), write images.registry=docker.io, images.pullPolicy=Never and their tag, which is images.tag=dev for those of make images." -}}
{{- if not $registry }}
{{- fail (printf "images.registry is not set, so nothing says where the image %s comes from. Write the registry to which you pushed the images, for example images.registry=registry.example.com. %s" $repository $own) }}
{{- end }}
{{- if not (regexMatch "^(localhost|[A-Za-z0-9-]+([.][A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:[0-9]+|\\[[0-9A-Fa-f:]+\\])(:[0-9]+)?(/[a-z0-9._-]+)*$" $registry) }}
{{- fail (printf "images.registry is %q. Write a registry's host, its port if it has one, and folders, for example images.registry=registry.example.com/team. A name without a host would be pulled from docker.io." $registry) }}
{{- end }}
{{- if and $digest $images.tag }}
{{- fail (printf "images.tag is %q, and images.digests.%s is set too, which decides alone. Write images.digests=null to use the images of that tag, or leave out images.tag." $images.tag $part) }}
{{- end }}
{{- if include "vgpu.unowned" . }}
{{- fail (printf "images.registry is %s, and nobody of this project owns docker.io/dra-driver-vgpu, so nothing must be pulled from it. %s For an image of your own on Docker Hub, set images.%s, too." $registry $own $part) }}
{{- end }}
{{- $registry }}/{{ $repository }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $images.tag | default (index . 0).Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* The label of nodes on which the images run. Empty if they are for both architectures: the runtime then chooses. With
`helm upgrade --reuse-values` an old chart's values have no images.architectures, and its images were for amd64. */}}
{{- define "vgpu.architecture" -}}
{{- $all := .Values.images.architectures | default (list "amd64") -}}
{{- if eq (len $all) 1 }}kubernetes.io/arch: {{ first $all }}{{ end -}}
{{- end -}}

{{/* "by-labels" if only nodes that are labelled as having an NVIDIA GPU get the plugin. Empty: the values choose other nodes,
or all. With `helm upgrade --reuse-values` an old chart's values have no plugin.allNodes: as with that chart, all. */}}
{{- define "vgpu.gpuNodes" -}}
{{- $chosen := or (include "vgpu.softGpuState" .) .Values.plugin.nodeSelector .Values.plugin.affinity -}}
{{- if and (not $chosen) (eq (toString .Values.plugin.allNodes) "false") }}by-labels{{ end -}}
{{- end -}}

{{/* The labels of nodes with an NVIDIA GPU, as JSON: of the GPU Operator, of Node Feature Discovery, and one to set by hand. */}}
{{- define "vgpu.gpuLabels" -}}
{{- list "nvidia.com/gpu.present" "feature.node.kubernetes.io/pci-10de.present" "dra.vgpu/gpu" | toJson -}}
{{- end -}}

{{/* vgpu.unlabelled (list . NAMES): those of these nodes that exist without a label of GPUs, as JSON. Without NAMES: of all
Linux nodes, and none of them if one has such a label. `helm template` sees no node. */}}
{{- define "vgpu.unlabelled" -}}
{{- $labels := include "vgpu.gpuLabels" . | fromJsonArray -}}
{{- $names := list -}}
{{- $labelled := false -}}
{{- range (lookup "v1" "Node" "" "").items }}
{{- $of := .metadata.labels | default dict }}
{{- $has := false }}
{{- range $labels }}{{ if eq (toString (get $of .)) "true" }}{{ $has = true }}{{ end }}{{ end }}
{{- if $has }}{{ $labelled = true }}
{{- else if eq (toString (get $of "kubernetes.io/os")) "linux" }}{{ $names = append $names .metadata.name }}{{ end }}
{{- end }}
{{- $wanted := index . 1 -}}
{{- if not (kindIs "invalid" $wanted) }}
{{- $both := list }}
{{- range $names }}{{ if has . $wanted }}{{ $both = append $both . }}{{ end }}{{ end }}
{{- $names = $both }}
{{- else if $labelled }}{{ $names = list }}{{ end }}
{{- $names | sortAlpha | toJson -}}
{{- end -}}

{{/* The driver root on the node: with softGpu.gpus the folder in which the software GPU's libraries are put. */}}
{{- define "vgpu.driverRoot" -}}
{{- if (.Values.softGpu).gpus }}/var/lib/soft-gpu/driver{{ else }}{{ .Values.driverRoot }}{{ end -}}
{{- end -}}

{{/* The folder on the node with releases of the library. The values of a chart of before have none. */}}
{{- define "vgpu.libraryStore" -}}
{{- .Values.plugin.libraryStore | default "/var/lib/vgpu" -}}
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

{{/* CEL: whether the annotation `key` is a request of KAI for a container, whose name is in the key. */}}
{{- define "vgpu.celAsksForContainer" -}}
key.matches(r'^nvidia\.com/container\.(\w|-)*\.gpu-memory')
{{- end -}}

{{/* CEL: whether the container asks for an instance of a GPU as NVIDIA's device plugin has them: the profile is in the name. */}}
{{- define "vgpu.celAsksForInstance" -}}
container.?resources.?limits.orValue({}).exists(key, key.startsWith('nvidia.com/mig-'))
{{- end -}}

{{/* KAI's annotations of a pod, as JSON. Each of them except the last is a request for a GPU. */}}
{{- define "vgpu.askedAnnotations" -}}
{{- list "gpu-fraction" "gpu-memory" "gpu-fraction-num-devices" "gpu-fraction-container-name" | toJson -}}
{{- end -}}
