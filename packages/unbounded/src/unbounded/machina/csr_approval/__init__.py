"""Certificates of agents and kubelets: which requests get one, and how often.

A join allows two certificates, one for the agent of a Machine and one for its kubelet. A join needs a cause: a new
Machine, a HostReplace that runs or has written the host, a completed AgentReset, or a raised `spec.joinCounter`. The
holder of a Machine's certificate may renew it. Every other certificate needs a cause.

    request     parser of CertificateSigningRequests
    plan        pure: causes of joins, and their use; plan(request, machine) -> Verdict
    serving     pure: plan_serving(request, machine, neighbours) -> Verdict, for serving certificates of kubelets
    controller  loop over CertificateSigningRequests
"""
