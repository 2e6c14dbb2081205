// Reads the metadata of a claim's devices: the path at which Kubernetes' package looks for it, and what that makes of a
// file's text.

package main

import (
	"encoding/json"
	"strings"

	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

type metadataQuestion struct {
	Driver string `json:"driver"`
	// Claim or PodClaim: the latter for a claim made from a template.
	Claim    string `json:"claim"`
	PodClaim string `json:"podClaim"`
	Request  string `json:"request"`
	Text     string `json:"text"`
}

type metadataAnswer struct {
	Path    string                  `json:"path"`
	Read    *v1beta1.DeviceMetadata `json:"read,omitempty"`
	Invalid string                  `json:"invalid,omitempty"`
	Error   string                  `json:"error,omitempty"`
}

func metadataReply(q *metadataQuestion) metadataAnswer {
	answer := metadataAnswer{Path: metadata.ResourceClaimFilePath(q.Driver, q.Claim, q.Request)}
	if q.PodClaim != "" {
		answer.Path = metadata.ResourceClaimTemplateFilePath(q.Driver, q.PodClaim, q.Request)
	}
	var read v1beta1.DeviceMetadata
	var invalid error
	text := json.NewDecoder(strings.NewReader(q.Text))
	err := devicemetadata.DecodeMetadataFromStream(text, &read, devicemetadata.DecodeMetadataWithValidationResult(&invalid))
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	if invalid != nil {
		answer.Invalid = invalid.Error()
	}
	answer.Read = &read
	return answer
}
