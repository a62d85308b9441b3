"""Certificates of agents and kubelets: who gets one, and how often.

A join lets two certificates be issued, one for the agent of a Machine and one for its kubelet. What lets it is a cause:
that the Machine is new, a HostReplace that runs or has written the host, a completed AgentReset, or a person who raised
`spec.joinCounter`. Whoever holds a certificate of a Machine renews it; nobody else gets another one without a cause.

    request     what is asked for, and by whom
    causes      what lets a Machine join, and how it is used up
    plan        pure: plan(request, machine) -> Verdict
    serving     pure: plan_serving(request, machine, neighbours) -> Verdict, for what kubelets serve with
    controller  the loop over CertificateSigningRequests
"""
