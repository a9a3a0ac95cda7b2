// What the mock finds wrong with a configuration: unknown keys, types, ranges and choices, by the schema.
// The balancer finds far more; this is enough to see problems in the pages.

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function check(schema, values, lines) {
  const tables = new Map(schema.tables.map((t) => [t.header.replaceAll("[[", "[").replaceAll("]]", "]"), t]));
  const problems = [];
  const report = (key, message, allowed = null) => {
    let at = key;
    while (at && !(at in lines)) at = at.replace(/(\.[^.[\]]+|\[\d+\])$/, "") === at ? "" : at.replace(/(\.[^.[\]]+|\[\d+\])$/, "");
    problems.push({ line: lines[at] ?? 1, column: 1, key, message, allowed });
  };
  const groups = new Set([...Object.keys(values.group ?? {}), ...Object.entries(values.rule ?? {}).filter(([, r]) => r.members).map(([n]) => n)]);

  const one = (key, spec, value) => {
    const allowed = spec.allowed;
    if (value === false && /, or false$|true or false/.test(allowed)) return;
    const list = /, or a list(?=$|,)/.test(allowed);
    if (list && Array.isArray(value)) return value.forEach((v, i) => one(`${key}[${i}]`, { ...spec, allowed: allowed.replace(/, or a list(?=$|,)/, "") }, v));
    let m;
    if (/^true or false/.test(allowed)) {
      if (typeof value !== "boolean") report(key, `not a yes or no; found ${JSON.stringify(value)}`, allowed);
    } else if ((m = /^a (whole )?number from ([\d.]+) to ([\d.]+)/.exec(allowed))) {
      if (typeof value !== "number" || (m[1] && !Number.isInteger(value))) report(key, `not a number; found ${JSON.stringify(value)}`, allowed);
      else if (value < +m[2] || value > +m[3]) report(key, `out of range; found ${value}`, allowed);
    } else if ((m = /^a time from "([^"]+)" to "([^"]+)"/.exec(allowed))) {
      const t = time(value);
      if (t === null) report(key, `not a time; found ${JSON.stringify(value)}`, allowed);
      else if (t < time(m[1]) || t > time(m[2])) report(key, `out of range; found ${JSON.stringify(value)}`, allowed);
    } else if (/^("[^"]+"(, | or |,)?)+(, or false|, or a list)?$/.test(allowed) && !allowed.includes(":NAME")) {
      const choices = [...allowed.matchAll(/"([^"]+)"/g)].map((x) => x[1]);
      if (!choices.includes(value)) report(key, `not valid here; found ${JSON.stringify(value)}`, allowed);
    } else if (/^an IP address with a port/.test(allowed)) {
      if (typeof value !== "string" || !/^(unix:\/.+|(\[[0-9a-f:]+\]|\d+\.\d+\.\d+\.\d+):\d+)$/.test(value)) report(key, `not an address; found ${JSON.stringify(value)}`, allowed);
    } else if (/^one of "adaptive"/.test(allowed)) {
      const name = isTable(value) ? value.name : value;
      const known = schema.strategies.find((s) => s.name === name);
      if (!known) return report(key, `unknown strategy; found ${JSON.stringify(name)}`, allowed);
      if (isTable(value))
        for (const [p, v] of Object.entries(value)) {
          if (p === "name") continue;
          const param = known.params.find((x) => x.name === p);
          if (!param) report(`${key}.${p}`, "unknown parameter", known.params.map((x) => x.name).join(", "));
          else if (typeof v !== "number" || v < param.min || v > param.max || (param.integer && !Number.isInteger(v)))
            report(`${key}.${p}`, `out of range; found ${JSON.stringify(v)}`, `a ${param.integer ? "whole " : ""}number from ${param.min} to ${param.max}`);
        }
    }
  };

  const table = (header, key, tree) => {
    const spec = tables.get(header);
    if (!spec || !isTable(tree)) return;
    const keys = new Map();
    for (const k of spec.keys) for (const name of [k.name, k.alias]) if (name) keys.set(name, k);
    if (header === "[rule.NAME]" && !("group" in tree)) for (const k of tables.get("[group.NAME]").keys) keys.set(k.name, k);
    for (const [name, value] of Object.entries(tree)) {
      const known = keys.get(name);
      const here = key ? `${key}.${name}` : name;
      const path = header === "" ? `[${name}]` : `${header.slice(0, -1)}.${name}]`;
      if (!known && tables.has(path.replace(/^\[(\w+)\.NAME\.class\]/, "[$1.NAME.class.CLASS]")) && !tables.has(path)) Object.entries(value).forEach(([n, v]) => table("[cluster.NAME.class.CLASS]", `${here}.${n}`, v));
      else if (!known && !tables.has(path)) report(here, "unknown key", null);
      else if (isTable(value) && tables.has(path)) table(path, here, value);
      else if (Array.isArray(value) && tables.has(path)) value.forEach((v, i) => table(path, `${here}[${i}]`, v));
      else one(here, known, value);
    }
  };

  for (const [name, value] of Object.entries(values)) {
    if (["rule", "group", "cluster", "location"].includes(name)) for (const [n, v] of Object.entries(value)) table(`[${name}.NAME]`, `${name}.${n}`, v);
    else if (name === "defaults") continue;
    else if (tables.has(`[${name}]`)) table(`[${name}]`, name, value);
    else if (!tables.get("").keys.some((k) => k.name === name)) report(name, "unknown key");
  }
  for (const [name, rule] of Object.entries(values.rule ?? {})) {
    if (!("listen" in rule)) report(`rule.${name}.listen`, "missing; a rule needs it");
    if (!rule.members && !rule.group && !rule.routes && !rule.sni && !rule.members_files) report(`rule.${name}.members`, "missing; a rule needs members or a group");
    if (rule.group && !groups.has(rule.group)) report(`rule.${name}.group`, `unknown group`, [...groups].map((g) => `"${g}"`).join(", "));
  }
  for (const [name, group] of Object.entries(values.group ?? {})) if (!group.members?.length) report(`group.${name}.members`, "missing; a group needs at least one member");
  return problems;
}

function time(value) {
  const m = typeof value === "string" && /^([\d.]+)(ns|us|ms|s|m|h|d)$/.exec(value);
  if (!m) return null;
  return +m[1] * { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600, d: 86400 }[m[2]];
}
