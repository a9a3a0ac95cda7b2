//! Text with a bound.

/// Text of which the beginning is kept.
#[derive(Clone, Debug)]
pub(crate) struct ShortText<const MAX: usize> {
    pub(crate) bytes: [u8; MAX],
    /// Length of the text, which may be more than what is kept.
    length: usize,
}

impl<const MAX: usize> ShortText<MAX> {
    pub(crate) const EMPTY: Self = ShortText {
        bytes: [0; MAX],
        length: 0,
    };

    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    pub(crate) fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let room = MAX.saturating_sub(self.length);
        bytes.iter().take(room).for_each(|&byte| self.push(byte));
        if bytes.len() > room {
            self.length = MAX.saturating_add(1);
        }
    }

    /// The text, if it is kept in full.
    pub(crate) fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }
}
