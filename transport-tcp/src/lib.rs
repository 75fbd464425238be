//! NVMe/TCP over std sockets.
