// Command crds validates the CustomResourceDefinitions of files as kube-apiserver does at their creation.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	strategy := customresourcedefinition.NewStrategy(scheme)
	bad := 0
	for _, name := range os.Args[1:] {
		data, err := os.ReadFile(name)
		if err != nil {
			panic(err)
		}
		for _, doc := range bytes.Split(data, []byte("\n---\n")) {
			obj, gvk, err := codecs.UniversalDecoder(apiextensions.SchemeGroupVersion).Decode(doc, nil, nil)
			if err != nil {
				fmt.Println(name, "DECODE", err)
				bad++
				continue
			}
			crd := obj.(*apiextensions.CustomResourceDefinition)
			strategy.PrepareForCreate(context.Background(), crd)
			errs := strategy.Validate(context.Background(), crd)
			warnings := strategy.WarningsOnCreate(context.Background(), crd)
			fmt.Println(crd.Name, gvk.Version, "errors:", len(errs), errs.ToAggregate(), "warnings:", warnings)
			bad += len(errs)
		}
	}
	if bad > 0 {
		os.Exit(1)
	}
}
