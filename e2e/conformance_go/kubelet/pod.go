package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod that runs here.
type Pod struct {
	object  *corev1.Pod
	address string
	// Process of the echo server; nil for images that are not the echo server.
	process *exec.Cmd
	// True if the server takes datagrams, and no connections.
	datagrams bool
	ready     bool
}

// Creates a pod and starts its program.
func (k *Kubelet) startPod(ctx context.Context, deployment *appsv1.Deployment, name string) (*Pod, error) {
	template := deployment.Spec.Template
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Namespace:   deployment.Namespace,
			Labels:      template.Labels,
			Annotations: template.Annotations,
		},
		Spec: template.Spec,
	}
	object.Spec.NodeName = node
	mounted, err := k.readVolumes(ctx, deployment.Namespace, name, &template.Spec)
	if err != nil {
		return nil, err
	}
	k.used++
	pod := &Pod{address: fmt.Sprintf("10.77.%d.%d", 1+k.used/250, 1+k.used%250)}
	container := template.Spec.Containers[0]
	program := ""
	switch {
	case strings.Contains(container.Image, "/echo-basic"):
		program = k.echo
	case strings.Contains(container.Image, "/coredns"):
		program = k.self + " dns"
	}
	for _, variable := range container.Env {
		pod.datagrams = pod.datagrams || variable.Name == "UDP_ECHO_SERVER"
	}
	pod.datagrams = pod.datagrams || program != k.echo
	if program != "" {
		if err := k.startProgram(pod, program, deployment.Namespace, name, container.Env, mounted); err != nil {
			return nil, err
		}
	}
	pod.object, err = k.client.CoreV1().Pods(deployment.Namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		pod.stop()
		return nil, err
	}
	return pod, nil
}

// Writes secrets and configuration maps of volumes to files. Returns the folder for the path of each mount.
func (k *Kubelet) readVolumes(ctx context.Context, namespace, pod string, spec *corev1.PodSpec) (map[string]string, error) {
	folders := map[string]string{}
	for _, volume := range spec.Volumes {
		contents := map[string][]byte{}
		var items []corev1.KeyToPath
		switch {
		case volume.Secret != nil:
			secret, err := k.client.CoreV1().Secrets(namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			contents, items = secret.Data, volume.Secret.Items
		case volume.ConfigMap != nil:
			object, err := k.client.CoreV1().ConfigMaps(namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			for key, text := range object.Data {
				contents[key] = []byte(text)
			}
			items = volume.ConfigMap.Items
		}
		if len(items) == 0 {
			for key := range contents {
				items = append(items, corev1.KeyToPath{Key: key, Path: key})
			}
		}
		folder := filepath.Join(k.folder, namespace, pod, volume.Name)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
		for _, item := range items {
			if err := os.WriteFile(filepath.Join(folder, item.Path), contents[item.Key], 0o600); err != nil {
				return nil, err
			}
		}
		folders[volume.Name] = folder
	}
	mounted := map[string]string{}
	for _, mount := range spec.Containers[0].VolumeMounts {
		mounted[mount.MountPath] = folders[mount.Name]
	}
	return mounted, nil
}

// Starts the program of a pod in a network namespace, connected to the bridge.
func (k *Kubelet) startProgram(pod *Pod, program, namespace, name string, env []corev1.EnvVar, mounted map[string]string) error {
	// The shell waits until the interface is there.
	script := "read line && ip link set lo up && ip addr add " + pod.address +
		"/16 dev eth0 && ip link set eth0 up && exec " + program
	command := exec.Command("sh", "-c", script)
	output := &PodLog{k.logs, namespace + "/" + name}
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "POD_IP=" + pod.address}
	for _, variable := range env {
		command.Env = append(command.Env, variable.Name+"="+readVariable(variable, namespace, name, pod, mounted))
	}
	stdin, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	pod.process = command
	link := fmt.Sprintf("pod%d", k.used)
	for _, arguments := range []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", link, command.Process.Pid),
		"link set " + link + " master pods",
		"link set " + link + " up",
	} {
		if err := runIP(arguments); err != nil {
			pod.stop()
			return err
		}
	}
	_, err = io.WriteString(stdin, "go\n")
	return err
}

func readVariable(variable corev1.EnvVar, namespace, name string, pod *Pod, mounted map[string]string) string {
	if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
		switch variable.ValueFrom.FieldRef.FieldPath {
		case "metadata.name":
			return name
		case "metadata.namespace":
			return namespace
		case "status.podIP":
			return pod.address
		}
	}
	for path, folder := range mounted {
		if rest, found := strings.CutPrefix(variable.Value, path+"/"); found {
			return filepath.Join(folder, rest)
		}
	}
	return variable.Value
}

// Writes the status of a pod once its server answers.
func (k *Kubelet) showReady(ctx context.Context, pod *Pod) error {
	if pod.ready {
		return nil
	}
	if pod.process != nil && !pod.datagrams {
		connection, err := net.DialTimeout("tcp", pod.address+":3000", 100*time.Millisecond)
		if err != nil {
			return nil
		}
		connection.Close()
	}
	now := metav1.Now()
	object := pod.object
	object.Status.Phase = corev1.PodRunning
	object.Status.PodIP = pod.address
	object.Status.PodIPs = []corev1.PodIP{{IP: pod.address}}
	object.Status.HostIP = nodeAddress
	object.Status.StartTime = &now
	object.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}
	if _, err := k.client.CoreV1().Pods(object.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return err
	}
	pod.ready = true
	return nil
}

// Deletes a pod whose program has ended.
func (k *Kubelet) deletePod(ctx context.Context, pod *Pod) {
	now := int64(0)
	options := metav1.DeleteOptions{GracePeriodSeconds: &now}
	// A pod that somebody else has deleted is gone, too.
	_ = k.client.CoreV1().Pods(pod.object.Namespace).Delete(ctx, pod.object.Name, options)
}

func (p *Pod) stop() {
	if p.process == nil {
		return
	}
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
}
