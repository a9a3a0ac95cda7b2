// Kubelet and controllers for the conformance suite of the Gateway API: each pod of a Deployment is the suite's echo
// server in a network namespace of its own, and services get EndpointSlices. The program runs where a bridge named pods
// has the node's address.
//
// Usage: kubelet KUBECONFIG ECHO-BASIC FOLDER
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Name of the only node.
const node = "node"

// Address of the node at the bridge of all pods.
const nodeAddress = "10.77.0.1"

// Kubelet has a cluster and the pods that run here.
type Kubelet struct {
	client *kubernetes.Clientset
	echo   string
	// This program, which serves names in pods, too.
	self   string
	folder string
	// Pods by namespace and name.
	pods map[string]*Pod
	// Slices that were written, as JSON, by namespace and name.
	slices map[string]string
	logs   *Logs
	// Number of addresses that pods have had.
	used int
}

func main() {
	// Programs of pods end with the thread that has started them.
	runtime.LockOSThread()
	if len(os.Args) == 2 && os.Args[1] == "dns" {
		log.Fatal(serveNames())
	}
	if len(os.Args) != 4 {
		log.Fatal("usage: kubelet KUBECONFIG ECHO-BASIC FOLDER")
	}
	self, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	kubelet := &Kubelet{
		client: client,
		echo:   os.Args[2],
		self:   self,
		folder: os.Args[3],
		pods:   map[string]*Pod{},
		slices: map[string]string{},
		logs:   &Logs{parts: map[string][]logPart{}},
	}
	port, err := kubelet.logs.serve()
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := kubelet.register(ctx, port); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	for {
		if err := kubelet.reconcile(ctx); err != nil {
			log.Print(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Runs ip with arguments that are separated by spaces.
func runIP(arguments string) error {
	out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", arguments, err, out)
	}
	return nil
}

// Creates the node. The API server asks the node for the logs of pods.
func (k *Kubelet) register(ctx context.Context, port int32) error {
	nodes := k.client.CoreV1().Nodes()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	created, err := nodes.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
	created.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	_, err = nodes.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

// Makes pods and slices what Deployments and Services want.
func (k *Kubelet) reconcile(ctx context.Context) error {
	namespaces, err := k.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, namespace := range namespaces.Items {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		accounts := k.client.CoreV1().ServiceAccounts(namespace.Name)
		_, err := accounts.Create(ctx, account, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
			return err
		}
	}
	deployments, err := k.client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for index := range deployments.Items {
		deployment := &deployments.Items[index]
		for number := range replicas(deployment) {
			// The suite takes two parts off the name of a pod to find the Deployment.
			name := fmt.Sprintf("%s-pod-%d", deployment.Name, number)
			key := deployment.Namespace + "/" + name
			wanted[key] = true
			if k.pods[key] != nil {
				continue
			}
			pod, err := k.startPod(ctx, deployment, name)
			if err != nil {
				return fmt.Errorf("pod %s: %w", key, err)
			}
			k.pods[key] = pod
		}
	}
	for key, pod := range k.pods {
		if !wanted[key] {
			pod.stop()
			delete(k.pods, key)
			k.deletePod(ctx, pod)
		} else if err := k.showReady(ctx, pod); err != nil {
			return fmt.Errorf("pod %s: %w", key, err)
		}
	}
	return k.writeSlices(ctx)
}

// Returns the number of pods that a Deployment wants.
func replicas(deployment *appsv1.Deployment) int32 {
	if deployment.Spec.Replicas == nil {
		return 1
	}
	return *deployment.Spec.Replicas
}
