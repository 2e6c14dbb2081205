// Compiles ValidatingAdmissionPolicies and applies them to objects, as the API server does.

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Every policy is applied to each object whose resource it matches.
type admissionQuestion struct {
	Policies []admissionv1.ValidatingAdmissionPolicy `json:"policies"`
	// Objects to be created by some user.
	Objects []runtime.RawExtension `json:"objects,omitempty"`
	// Requests with their users, in place of objects.
	Requests []admissionRequest `json:"requests,omitempty"`
}

// Without an old object it is a CREATE, without a new one a DELETE, else an UPDATE.
type admissionRequest struct {
	User string `json:"user"`
	// The node that the user's token names, as that of a pod.
	Node string `json:"node,omitempty"`
	// For example status, for pods/status; eviction for an Eviction.
	Subresource string `json:"subresource,omitempty"`
	// Labels of the object's namespace.
	Namespace map[string]string    `json:"namespace,omitempty"`
	Old       runtime.RawExtension `json:"old,omitempty"`
	Object    runtime.RawExtension `json:"object,omitempty"`
}

type admissionVerdicts struct {
	Verdicts []admissionVerdict `json:"verdicts"`
	Error    string             `json:"error,omitempty"`
}

type admissionVerdict struct {
	// Number of policies that match the resource. An object without any policy does not count as accepted.
	Policies int      `json:"policies"`
	Denied   []string `json:"denied,omitempty"`
	// Expressions that fail, for example by their cost. The API server then refuses the object.
	Errors []string `json:"errors,omitempty"`
}

func admissionReply(q *admissionQuestion) admissionVerdicts {
	validators := make([]validating.Validator, len(q.Policies))
	for i := range q.Policies {
		validator, err := compile(&q.Policies[i])
		if err != nil {
			return admissionVerdicts{Error: fmt.Sprintf("policy %s: %v", q.Policies[i].Name, err)}
		}
		validators[i] = validator
	}
	requests := q.Requests
	for i := range q.Objects {
		requests = append(requests, admissionRequest{Object: q.Objects[i]})
	}
	said := admissionVerdicts{Verdicts: make([]admissionVerdict, len(requests))}
	for i := range requests {
		attributes, err := requests[i].attributes()
		if err != nil {
			return admissionVerdicts{Error: fmt.Sprintf("object %d: %v", i, err)}
		}
		namespace := &corev1.Namespace{}
		namespace.Name, namespace.Labels = attributes.GetNamespace(), requests[i].Namespace
		for p := range q.Policies {
			matched, err := matches(&q.Policies[p], attributes, namespace)
			if err != nil {
				return admissionVerdicts{Error: fmt.Sprintf("policy %s: %v", q.Policies[p].Name, err)}
			}
			if matched {
				said.Verdicts[i].apply(validators[p], attributes, namespace)
			}
		}
	}
	return said
}

func (r *admissionRequest) attributes() (*admission.VersionedAttributes, error) {
	var object, old runtime.Object
	var resource schema.GroupVersionResource
	var err error
	if r.Object.Raw != nil {
		if object, resource, err = typed(r.Object.Raw); err != nil {
			return nil, err
		}
	}
	if r.Old.Raw != nil {
		if old, resource, err = typed(r.Old.Raw); err != nil {
			return nil, err
		}
	}
	operation, options, any := admission.Update, runtime.Object(&metav1.UpdateOptions{}), object
	switch {
	case old == nil:
		operation, options = admission.Create, &metav1.CreateOptions{}
	case object == nil:
		operation, options, any = admission.Delete, &metav1.DeleteOptions{}, old
	}
	kind := any.GetObjectKind().GroupVersionKind()
	by := &user.DefaultInfo{Name: r.User}
	if r.Node != "" {
		by.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {r.Node}}
	}
	attributes := admission.NewAttributesRecord(
		object, old, kind, "default", "x", resource, r.Subresource, operation, options, false, by)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind}
	if object != nil {
		versioned.VersionedObject = admission.NewLazyObject(object)
	}
	if old != nil {
		versioned.VersionedOldObject = admission.NewLazyObject(old)
	}
	return versioned, nil
}

func (v *admissionVerdict) apply(validator validating.Validator, versioned *admission.VersionedAttributes, namespace *corev1.Namespace) {
	v.Policies++
	result := validator.Validate(context.Background(), versioned.GetResource(), versioned, nil, namespace, celconfig.RuntimeCELCostBudget, nil)
	for _, decision := range result.Decisions {
		switch {
		case decision.Evaluation == validating.EvalError:
			v.Errors = append(v.Errors, decision.Message)
		case decision.Action == validating.ActionDeny:
			v.Denied = append(v.Denied, decision.Message)
		}
	}
}

func matches(policy *admissionv1.ValidatingAdmissionPolicy, attributes admission.Attributes, namespace *corev1.Namespace) (bool, error) {
	if selector := policy.Spec.MatchConstraints.NamespaceSelector; selector != nil {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || !parsed.Matches(labels.Set(namespace.Labels)) {
			return false, err
		}
	}
	resource := attributes.GetResource().Resource
	if attributes.GetSubresource() != "" {
		resource += "/" + attributes.GetSubresource()
	}
	for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
		if slices.Contains(rule.Resources, resource) && slices.Contains(rule.Operations, admissionv1.OperationType(attributes.GetOperation())) {
			return true, nil
		}
	}
	return false, nil
}

// typed converts JSON as an admission plugin sees it: a missing list without omitempty becomes null, and a quantity is
// written in Kubernetes' form.
func typed(text []byte) (runtime.Object, schema.GroupVersionResource, error) {
	var head metav1.TypeMeta
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, schema.GroupVersionResource{}, err
	}
	var object runtime.Object
	var resource string
	switch head.Kind {
	case "Pod":
		pod := &corev1.Pod{}
		err := json.Unmarshal(text, pod)
		return pod, corev1.SchemeGroupVersion.WithResource("pods"), err
	case "Deployment":
		deployment := &appsv1.Deployment{}
		err := json.Unmarshal(text, deployment)
		return deployment, appsv1.SchemeGroupVersion.WithResource("deployments"), err
	case "CronJob":
		job := &batchv1.CronJob{}
		err := json.Unmarshal(text, job)
		return job, batchv1.SchemeGroupVersion.WithResource("cronjobs"), err
	case "Eviction":
		eviction := &policyv1.Eviction{}
		err := json.Unmarshal(text, eviction)
		return eviction, corev1.SchemeGroupVersion.WithResource("pods"), err
	case "Namespace":
		namespace := &corev1.Namespace{}
		err := json.Unmarshal(text, namespace)
		return namespace, corev1.SchemeGroupVersion.WithResource("namespaces"), err
	case "VgpuQuota", "VgpuQuotaDefault", "VgpuNode":
		quota := &unstructured.Unstructured{}
		err := json.Unmarshal(text, &quota.Object)
		resource := strings.ToLower(head.Kind) + "s"
		return quota, schema.GroupVersionResource{Group: "dra.vgpu", Version: "v1alpha1", Resource: resource}, err
	case "ResourceClaim":
		object, resource = &resourceapi.ResourceClaim{}, "resourceclaims"
	case "ResourceClaimTemplate":
		object, resource = &resourceapi.ResourceClaimTemplate{}, "resourceclaimtemplates"
	case "DeviceClass":
		object, resource = &resourceapi.DeviceClass{}, "deviceclasses"
	default:
		return nil, schema.GroupVersionResource{}, fmt.Errorf("kind %q is none that this program has a type for", head.Kind)
	}
	if err := json.Unmarshal(text, object); err != nil {
		return nil, schema.GroupVersionResource{}, err
	}
	return object, resourceapi.SchemeGroupVersion.WithResource(resource), nil
}

// compile does the same as the API server when it loads a policy, with the same packages.
func compile(policy *admissionv1.ValidatingAdmissionPolicy) (validating.Validator, error) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	const stored = environment.StoredExpressions
	withAuthorizer := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	// In order: a variable may use those before it.
	for _, v := range policy.Spec.Variables {
		variable := &validating.Variable{Name: v.Name, Expression: v.Expression}
		if result := compiler.CompileAndStoreVariable(variable, withAuthorizer, stored); result.Error != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, result.Error)
		}
	}
	var conditions, validations, messages []cel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	messages = make([]cel.ExpressionAccessor, len(policy.Spec.Validations)) // nil for a fixed message
	for i, v := range policy.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		if v.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	// The API server refuses a policy with an expression that does not compile, so this does too.
	for _, part := range []struct {
		expressions []cel.ExpressionAccessor
		options     cel.OptionalVariableDeclarations
	}{{conditions, withAuthorizer}, {validations, withAuthorizer}, {messages, cel.OptionalVariableDeclarations{}}} {
		for _, expression := range part.expressions {
			if expression == nil {
				continue
			}
			if result := compiler.CompileCELExpression(expression, part.options, stored); result.Error != nil {
				return nil, fmt.Errorf("%s: %w", expression.GetExpression(), result.Error)
			}
		}
	}
	fail := policy.Spec.FailurePolicy
	var matcher matchconditions.Matcher
	if len(conditions) > 0 {
		evaluator := compiler.CompileCondition(conditions, withAuthorizer, stored)
		matcher = matchconditions.NewMatcher(evaluator, fail, "policy", "validate", policy.Name)
	}
	return validating.NewValidator(
		compiler.CompileCondition(validations, withAuthorizer, stored),
		matcher,
		compiler.CompileCondition(nil, withAuthorizer, stored),
		compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, stored),
		fail,
		nil,
	), nil
}
