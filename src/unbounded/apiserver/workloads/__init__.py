"""Pods and Services, which are stored and not run: kubelets and other controllers give them life.

Their fields are those of Kubernetes, so that what a kubelet or a manifest brings is kept without loss.
"""
