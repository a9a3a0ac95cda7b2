// Renews the schema that the mock answers with from a running balancer: node scripts/schema.mjs http://127.0.0.1:9900
import { writeFileSync } from "node:fs";

const answer = await fetch(new URL("/v1/config/schema", process.argv[2] ?? "http://127.0.0.1:9900"));
if (!answer.ok) throw new Error(`the balancer answers ${answer.status}`);
writeFileSync(new URL("../mock/schema.json", import.meta.url), JSON.stringify(await answer.json()));
