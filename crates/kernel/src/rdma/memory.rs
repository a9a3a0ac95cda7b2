//! Memory that RDMA devices can read.

/// Memory with a load page in it.
///
/// # Safety
///
/// The memory can be read and written (RDMA devices refuse to register what is mapped for reading
/// alone), stays where it is, and lives as long as the value of this type.
pub unsafe trait Memory: Send + Sync {
    /// Address at which the memory begins.
    fn address(&self) -> *mut u8;
    /// Number of bytes in the memory.
    fn length(&self) -> usize;
}
