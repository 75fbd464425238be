//! NVMe/RDMA over verbs.
