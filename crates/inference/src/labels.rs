//! Model and operation of a request, under which metrics and traces show it.

use crate::model_name::ModelName;

/// Operation that a request asks an engine for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// A turn of a conversation: chat completions, responses, Anthropic's messages.
    Chat,
    /// A text that the model continues.
    TextCompletion,
    /// Vectors for texts.
    Embeddings,
    /// Anything else.
    #[default]
    Other,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 4] = [
        Operation::Chat,
        Operation::TextCompletion,
        Operation::Embeddings,
        Operation::Other,
    ];

    /// Name of the operation: the value of `gen_ai.operation.name` in OpenTelemetry's conventions, or `other`.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Chat => "chat",
            Operation::TextCompletion => "text_completion",
            Operation::Embeddings => "embeddings",
            Operation::Other => "other",
        }
    }

    /// Finds the operation of a request, and the provider whose interface the request has, by the end of its path. `None`
    /// if the path is of no known interface.
    pub fn find(target: &str) -> Option<(Self, &'static str)> {
        let (path, _) = target.split_once('?').unwrap_or((target, ""));
        let (before, last) = path.trim_end_matches('/').rsplit_once('/')?;
        match last {
            "completions" if before.ends_with("/chat") => Some((Operation::Chat, "openai")),
            "completions" => Some((Operation::TextCompletion, "openai")),
            "responses" => Some((Operation::Chat, "openai")),
            "embeddings" => Some((Operation::Embeddings, "openai")),
            "messages" => Some((Operation::Chat, "anthropic")),
            _ => None,
        }
    }
}

/// Labels of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestLabels {
    /// Name of the model at the engines, if the request names one for certain.
    pub model: Option<ModelName>,
    /// Operation, by the path of the request.
    pub operation: Operation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_path_tells_the_operation() {
        use Operation::{Chat, Embeddings, TextCompletion};
        for (target, expected) in [
            ("/v1/chat/completions", Some((Chat, "openai"))),
            ("/team/v1/chat/completions/?a=/x", Some((Chat, "openai"))),
            ("/v1/chat/completions?a=/messages", Some((Chat, "openai"))),
            ("/v1/completions", Some((TextCompletion, "openai"))),
            ("/completions", Some((TextCompletion, "openai"))),
            ("completions", None),
            ("/v1/responses", Some((Chat, "openai"))),
            ("/v1/embeddings", Some((Embeddings, "openai"))),
            ("/v1/messages", Some((Chat, "anthropic"))),
            ("http://a/v1/messages", Some((Chat, "anthropic"))),
            ("/v1/messages/count_tokens", None),
            ("/", None),
            ("", None),
            ("*", None),
        ] {
            assert_eq!(Operation::find(target), expected, "{target}");
        }
        let names: std::collections::HashSet<_> = Operation::ALL.map(Operation::name).into();
        assert_eq!(names.len(), Operation::ALL.len());
    }
}
