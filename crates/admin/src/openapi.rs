//! The description of the API as OpenAPI 3.1 has it, made from the table of operations.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::operation::{Answer, Operation};

/// Place in the document of the schemas that others refer to.
const COMPONENTS: &str = "/components/schemas";

/// Returns the OpenAPI document of the operations.
pub(crate) fn build_document(operations: &[Operation]) -> Value {
    // Bodies are read, answers are written: fields with defaults may be left out of the former only.
    let settings = || {
        SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = COMPONENTS.into();
            settings.meta_schema = None;
        })
    };
    let mut read = settings().for_deserialize().into_generator();
    let mut written = settings().for_serialize().into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let described = describe_operation(operation, &mut read, &mut written);
        let path = paths
            .entry(operation.path)
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(path) = path {
            path.insert(operation.method.as_str().to_ascii_lowercase(), described);
        }
    }
    let mut schemas = written.take_definitions(true);
    for (name, schema) in read.take_definitions(true) {
        schemas.entry(name).or_insert(schema);
    }
    schemas.insert("Error".into(), error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Evenkeel",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The admin API of the load balancer: see docs/admin-api.md.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, { "session": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "session": { "type": "apiKey", "in": "cookie", "name": "evenkeel_session" },
            },
        },
    })
}

fn describe_operation(
    operation: &Operation,
    read: &mut SchemaGenerator,
    written: &mut SchemaGenerator,
) -> Value {
    let mut parameters: Vec<Value> = path_parameters(operation.path).map(in_path).collect();
    if let Some(query) = &operation.query {
        parameters.extend(in_query(&query.schema(read), read));
    }
    let content = match &operation.answer {
        Answer::Json(of) => json!({ "application/json": { "schema": of.schema(written) } }),
        Answer::Text(media_type) => json!({ *media_type: { "schema": { "type": "string" } } }),
    };
    let error = json!({ "$ref": "#/components/schemas/Error" });
    let mut described = json!({
        "operationId": id(operation),
        "summary": operation.summary,
        "responses": {
            "200": { "description": "The request is carried out", "content": content },
            "default": {
                "description": "The request is refused, and nothing has changed",
                "content": { "application/json": { "schema": error } },
            },
        },
    });
    if let Value::Object(described) = &mut described {
        if !parameters.is_empty() {
            described.insert("parameters".into(), parameters.into());
        }
        if let Some(body) = &operation.body {
            let content = json!({ "application/json": { "schema": body.schema(read) } });
            let body = json!({ "required": true, "content": content });
            described.insert("requestBody".into(), body);
        }
        match operation.role {
            Some(role) => described.insert("x-role".into(), role.name().into()),
            None => described.insert("security".into(), json!([{}])),
        };
    }
    described
}

/// Returns a name that no other operation has: `get_v1_groups_group`.
fn id(operation: &Operation) -> String {
    let method = operation.method.as_str().to_ascii_lowercase();
    let words = operation.path.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    std::iter::once(&*method)
        .chain(words)
        .collect::<Vec<_>>()
        .join("_")
}

/// Returns the names that stand in braces.
fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    let parts = path.split('/');
    parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn in_path(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

/// Returns the fields of a query, which are parameters of their own.
fn in_query(query: &Schema, generator: &SchemaGenerator) -> Vec<Value> {
    let refers = query.get("$ref").and_then(Value::as_str);
    let name = refers.and_then(|to| to.rsplit('/').next());
    let definition = name.and_then(|name| generator.definitions().get(name));
    let fields = definition.unwrap_or(query.as_value()).get("properties");
    let fields = fields.and_then(Value::as_object).into_iter().flatten();
    fields
        .map(|(name, schema)| json!({ "name": name, "in": "query", "schema": schema }))
        .collect()
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error", "detail"],
        "properties": {
            "error": { "type": "string", "description": "Kind of the error: a stable word for programs." },
            "detail": { "type": "string", "description": "Description of the error: what was found, where, and what to do." },
            "allowed": {
                "type": "array",
                "items": { "type": "string" },
                "description": "Values that would have been accepted, where that is a short list.",
            },
        },
    })
}
