//! Stands for packets that the kernel makes, in a build without BPF.

/// Number of different frames.
pub const FRAMES: usize = 64;
/// Length of each frame.
pub const LENGTH: usize = 64;

/// Programs that this build does not have.
#[derive(Debug)]
pub struct Traffic(std::convert::Infallible);

impl Traffic {
    /// Returns the reason why there are no programs.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn open() -> Result<Self, String> {
        Err("this program was built without the feature `kernel`".into())
    }

    /// Is never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn drop_at(&self, _interface: u32) -> Result<(), String> {
        match self.0 {}
    }

    /// Is never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn send(
        &self,
        _frames: &[[u8; LENGTH]; FRAMES],
        _interface: u32,
        _count: u32,
    ) -> Result<u64, String> {
        match self.0 {}
    }
}
