//! Refusals of requests whose model may be an alias that cannot be read or replaced.

/// Reason why the name of a model, which may be an alias, cannot be read or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AliasRefusal {
    /// The body may name several models.
    Ambiguous,
    /// The body is compressed.
    Compressed,
    /// The client waits for a 100 (Continue).
    Expects,
    /// The name is not among the bytes that are read.
    TooFar,
    /// A field has a digest of the body.
    Digest,
    /// The body, or its length, is written in a way in which nothing can be replaced.
    Framing,
}

impl AliasRefusal {
    /// Returns the status, the code and the message for the client.
    pub(super) fn describe(self) -> (u16, &'static str, &'static str) {
        match self {
            AliasRefusal::Ambiguous => (
                400,
                "ambiguous_model",
                "The body may name several models. Write the key model once, as a string, and all keys without escapes.",
            ),
            AliasRefusal::Compressed => (
                415,
                "compressed_body",
                "The name of the model cannot be read in a compressed body. Send the body without Content-Encoding.",
            ),
            AliasRefusal::Expects => (
                417,
                "expectation_failed",
                "The body is needed to choose a server. Send the request without Expect: 100-continue.",
            ),
            AliasRefusal::TooFar => (
                413,
                "model_too_far",
                "The name of the model is too far behind the beginning of the body. Write the key model before the messages.",
            ),
            AliasRefusal::Digest => (
                400,
                "signed_body",
                "The name of the model cannot be replaced in a body with a digest. Use the engine's name of the model, or send no digest.",
            ),
            AliasRefusal::Framing => (
                400,
                "alias_not_replaced",
                "The name of the model cannot be replaced. Use the engine's name of the model.",
            ),
        }
    }
}
