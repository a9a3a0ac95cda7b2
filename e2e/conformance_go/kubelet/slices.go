package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Writes a slice for each service with a selector, and deletes slices of services that are gone.
func (k *Kubelet) writeSlices(ctx context.Context) error {
	services, err := k.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for index := range services.Items {
		service := &services.Items[index]
		if len(service.Spec.Selector) == 0 {
			continue
		}
		key := service.Namespace + "/" + service.Name
		wanted[key] = true
		slice := k.makeSlice(service)
		text, err := json.Marshal(slice)
		if err != nil {
			return err
		}
		if k.slices[key] == string(text) {
			continue
		}
		slices := k.client.DiscoveryV1().EndpointSlices(service.Namespace)
		if k.slices[key] == "" {
			_, err = slices.Create(ctx, slice, metav1.CreateOptions{})
		} else {
			_, err = slices.Update(ctx, slice, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("slice of %s: %w", key, err)
		}
		k.slices[key] = string(text)
	}
	for key := range k.slices {
		if wanted[key] {
			continue
		}
		namespace, name, _ := strings.Cut(key, "/")
		err := k.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, sliceName(name), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		delete(k.slices, key)
	}
	return nil
}

func sliceName(service string) string { return service + "-pods" }

func (k *Kubelet) makeSlice(service *corev1.Service) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      sliceName(service.Name),
			Namespace: service.Namespace,
			Labels:    map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	for _, pod := range k.pods {
		object := pod.object
		if object.Namespace != service.Namespace || !selector.Matches(labels.Set(object.Labels)) {
			continue
		}
		ready := pod.ready
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{pod.address},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: object.Namespace, Name: object.Name},
		})
	}
	sort.Slice(slice.Endpoints, func(i, j int) bool {
		return slice.Endpoints[i].TargetRef.Name < slice.Endpoints[j].TargetRef.Name
	})
	for _, port := range service.Spec.Ports {
		name, protocol, number := port.Name, port.Protocol, port.Port
		if port.TargetPort.Type == intstr.Int && port.TargetPort.IntVal != 0 {
			number = port.TargetPort.IntVal
		}
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name: &name, Protocol: &protocol, Port: &number, AppProtocol: port.AppProtocol,
		})
	}
	return slice
}
