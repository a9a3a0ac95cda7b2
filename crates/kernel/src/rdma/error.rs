//! Reasons why a page is not offered or not read.

use std::io;

use crate::record::BadRecord;

/// Reason why a page is not offered or not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The feature was off.
    #[error("this program was built without RDMA: build the program with --features kernel")]
    NotBuilt,
    /// The RDMA libraries are not installed, or too old.
    #[error(
        "the RDMA libraries cannot be loaded ({0}): install librdmacm1, libibverbs1 and ibverbs-providers (Debian, Ubuntu) or librdmacm and libibverbs (Fedora, RHEL)"
    )]
    Libraries(String),
    /// No RDMA device, or no kernel modules for it.
    #[error(
        "no RDMA device is here ({0}): load its driver and the modules ib_uverbs and rdma_ucm; or put Soft-RoCE on a network interface: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
    )]
    NoDevice(io::Error),
    /// A call to a library failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// RDMA CM says that there will be no connection.
    #[error("no RDMA connection: {0}")]
    NoConnection(String),
    /// The connection has not come about, or an answer has not come, for too long.
    #[error("the server does not answer in time")]
    TimedOut,
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The other side offers something that is no load page.
    #[error("the load page is not valid: {0}")]
    BadOffer(&'static str),
    /// A read failed.
    #[error("the page cannot be read: {0}")]
    Read(String),
    /// The bytes of the page are no record.
    #[error(transparent)]
    Record(#[from] BadRecord),
}

impl Error {
    pub(super) fn system(call: &'static str) -> Self {
        Error::System(call, io::Error::last_os_error())
    }
}
