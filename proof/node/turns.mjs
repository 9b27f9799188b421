// A process that takes turns with a lock of a Redlock client for node, and tells of each on standard
// output, a JSON object a line. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a
// machine share.
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';

const [library, key, seconds, duration, hold, rest, ...addrs] = process.argv.slice(2);
const module = await import(library);
const Redlock = module.Redlock ?? module.default;
const now = () => Number(process.hrtime.bigint());
const tell = (what) => process.stdout.write(JSON.stringify(what) + '\n');

const clients = addrs.map((addr) => {
  const [host, port] = addr.split(':');
  const client = new Redis({ host, port: Number(port), commandTimeout: 300, connectTimeout: 300, maxRetriesPerRequest: 0, retryStrategy: () => 100 });
  client.on('error', () => {}); // nodes fail, that is the test
  return client;
});
const redlock = new Redlock(clients); // with its own defaults: ten retries, 200 ms apart, give or take 100

const over = now() + Number(seconds) * 1e9;
while (now() < over) {
  const asked = now();
  try {
    const lock = await redlock.acquire([key], Number(duration));
    const got = now();
    // A millisecond less, since the end is in whole ones.
    const until = got + (lock.expiration - Date.now() - 1) * 1e6;
    await sleep(Number(hold));
    tell({ asked, got, end: Math.min(now(), until) });
    await lock.release().catch(() => {});
  } catch (error) {
    tell({ asked, failed: now(), why: error.message });
  }
  await sleep(Math.random() * Number(rest));
}
process.exit(0);
