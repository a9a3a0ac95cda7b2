// Vite's server for work on the pages, with the mock behind it, or a balancer: node mock/dev.mjs [--balancer http://127.0.0.1:9900]
import { createServer } from "vite";
import { Mock } from "./server.mjs";

const at = process.argv.indexOf("--balancer");
const target = at < 0 ? await new Mock({ scale: process.argv.includes("--large") ? "20x200" : "small" }).listen() : process.argv[at + 1];
const server = await createServer({ base: "/console/", server: { port: 5173, proxy: { "/v1": { target, changeOrigin: true } } } });
await server.listen();
server.printUrls();
