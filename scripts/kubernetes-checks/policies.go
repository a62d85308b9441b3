// Command policies compiles the CEL expressions of the ValidatingAdmissionPolicies of files as kube-apiserver does.
package main

import (
	"bytes"
	"fmt"
	"os"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

func main() {
	scheme := runtime.NewScheme()
	v1.AddToScheme(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	bad := 0
	fail := func(p, what string, err any) { fmt.Println(p, what, err); bad++ }
	for _, name := range os.Args[1:] {
		data, _ := os.ReadFile(name)
		for _, doc := range bytes.Split(data, []byte("\n---\n")) {
			if !bytes.Contains(doc, []byte("kind: ValidatingAdmissionPolicy")) {
				continue
			}
			obj, _, err := decoder.Decode(doc, nil, nil)
			if err != nil {
				fail(name, "decode", err)
				continue
			}
			p, ok := obj.(*v1.ValidatingAdmissionPolicy)
			if !ok {
				continue
			}
			base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
			c, err := cel.NewCompositedCompiler(base)
			if err != nil {
				panic(err)
			}
			vars := cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
			texts := cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil}
			n := 0
			for i := range p.Spec.Variables {
				v := p.Spec.Variables[i]
				r := c.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, vars, environment.NewExpressions)
				n++
				if r.Error != nil {
					fail(p.Name, "variable "+v.Name, r.Error)
				}
			}
			for i := range p.Spec.MatchConditions {
				r := c.CompileCELExpression((*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]), vars, environment.NewExpressions)
				n++
				if r.Error != nil {
					fail(p.Name, "matchCondition", r.Error)
				}
			}
			for _, v := range p.Spec.Validations {
				r := c.CompileCELExpression(&validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}, vars, environment.NewExpressions)
				n++
				if r.Error != nil {
					fail(p.Name, "validation", r.Error)
				}
				if v.MessageExpression != "" {
					r := c.CompileCELExpression(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, texts, environment.NewExpressions)
					n++
					if r.Error != nil {
						fail(p.Name, "messageExpression", r.Error)
					}
				}
			}
			fmt.Println(p.Name, "expressions compiled:", n)
		}
	}
	if bad > 0 {
		os.Exit(1)
	}
}
