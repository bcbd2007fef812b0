// Perfetto's trace processor, the WebAssembly that its page runs in a worker, served on a Unix socket until the
// first client leaves: node trace_processor.js FOLDER SOCKET, where FOLDER holds the page's engine_bundle.js.
"use strict";
const fs = require("fs"), net = require("net"), path = require("path"), vm = require("vm");

const [folder, socket] = process.argv.slice(2);

class FileRequest {
  open(method, url) { this.file = path.join(folder, path.basename(url)); }
  send() { this.response = new Uint8Array(fs.readFileSync(this.file)).buffer; }
}

const self = { location: { href: "file:///" } };
const worker = { self, WorkerGlobalScope: Object, XMLHttpRequest: FileRequest, importScripts() {}, process: undefined };
const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
vm.compileFunction(bundle, Object.keys(worker))(...Object.values(worker));

net.createServer((connection) => {
  const port = { postMessage: (reply) => connection.write(reply) };
  self.onmessage({ data: port });
  connection.on("data", (request) => port.onmessage({ data: new Uint8Array(request) }));
  connection.on("close", () => process.exit(0));
}).listen(socket, () => console.log("serving"));
