"""Resources beside Pods and Nodes that kubelets, storage and device drivers expect.

They are only stored and validated: nothing here attaches volumes or allocates devices.
"""
