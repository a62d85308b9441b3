"""Pods and Services, which the server stores and does not run: that is the work of kubelets and other controllers.

Their fields are those of Kubernetes, so that no field of a kubelet or a manifest is lost.
"""
