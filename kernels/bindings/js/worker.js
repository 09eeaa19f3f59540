// A worker that is a thread of a module, once it is told of which: the first message of the thread that started it.
import { inNode, work } from "./threads.js";

const port = inNode ? (await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:worker_threads")).parentPort : self;
port.onmessage = ({ data }) => {
  port.postMessage("ready");
  work(data);
};
