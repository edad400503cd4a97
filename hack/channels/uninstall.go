package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// endHolds names the Job, and is the syncer's flag.
const endHolds = "end-upgrade-holds"

// uninstallTemplate returns a template of the hook with which `helm uninstall` ends holds of upgrades while Muster is
// still there. The other ways to install know no hooks, and their uninstallation has one more command instead.
func uninstallTemplate(all []*unstructured.Unstructured) (string, error) {
	for _, p := range programs(all) {
		if p.name != "syncer" {
			continue
		}
		job, err := uninstallJob(p)
		if err != nil {
			return "", err
		}
		document, err := templateOf(job)
		return "{{- /* Generated from manifests/syncer. Do not edit. */}}\n---\n" + document, err
	}
	return "", fmt.Errorf("there is no syncer")
}

// uninstallJob returns a Job with the syncer's Pod, but without ports, probes, certificate and spreading. Its labels do
// not match the Deployment's selector. The program itself tries again, and gives up before
// the Job does, which would take its log away; Helm waits longer than either, for five minutes.
func uninstallJob(syncer program) (*unstructured.Unstructured, error) {
	container, err := syncer.container()
	if err != nil {
		return nil, err
	}
	container["args"] = []any{"--" + endHolds, logLevelArg}
	for _, field := range []string{"ports", "livenessProbe", "readinessProbe", "volumeMounts"} {
		delete(container, field)
	}
	pod, _, err := unstructured.NestedMap(syncer.deployment.Object, "spec", "template", "spec")
	if err != nil {
		return nil, err
	}
	for _, field := range []string{"topologySpreadConstraints", "terminationGracePeriodSeconds", "volumes"} {
		delete(pod, field)
	}
	pod["containers"], pod["restartPolicy"] = []any{container}, "Never"
	labels := map[string]any{"app.kubernetes.io/name": "muster", "app.kubernetes.io/component": endHolds}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1",
		"kind":       "Job",
		"metadata": map[string]any{
			"name": "muster-" + endHolds, "namespace": namespace, "labels": labels,
			"annotations": map[string]any{
				"helm.sh/hook":                   "pre-delete",
				"helm.sh/hook-delete-policy":     "before-hook-creation,hook-succeeded",
				"helm.sh/hook-output-log-policy": "hook-succeeded,hook-failed",
			},
		},
		"spec": map[string]any{
			"backoffLimit": int64(0), "activeDeadlineSeconds": int64(180), "ttlSecondsAfterFinished": int64(3600),
			"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": pod},
		},
	}}, nil
}
