//! The scenarios over each transport.
nvmf_testing::scenarios!(
    over_tcp,
    <nvmf_testing::pair::Pair as nvmf_testing::ends::Ends>::plain
);
nvmf_testing::scenarios!(
    over_rdma,
    <nvmf_testing::over_rdma::RdmaEnds as nvmf_testing::ends::Ends>::plain
);
