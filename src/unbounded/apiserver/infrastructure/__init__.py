"""Resources beside Pods and Nodes that kubelets, storage and device drivers expect. They are stored and validated only:
nothing here attaches volumes or allocates devices."""
