// Unleash as `npm install unleash-server` gives it, for the benchmark beside it: one process, quiet logs, its usual
// answers from memory. Prints its port when it answers.
import(`${process.argv[2]}/dist/lib/server-impl.js`)
  .then((unleash) => unleash.start({
    databaseUrl: process.env.UNLEASH_DATABASE_URL,
    db: { ssl: false, pool: { min: 1, max: 4 } },
    server: { port: 0, host: "127.0.0.1", gracefulShutdownEnable: false },
    logLevel: "error",
    versionCheck: { enable: false },
    telemetry: false,
    disableScarf: true,
    authentication: {
      type: "none",
      initApiTokens: [
        { environment: "development", projects: ["*"], secret: "*:development.bench", type: "client", tokenName: "bench" },
      ],
    },
    rateLimiting: { createUserMaxPerMinute: 1000000 },
  }))
  .then(({ server }) => process.stdout.write(`Serving http://127.0.0.1:${server.address().port}/\n`))
  .catch((error) => {
    process.stderr.write(`${error}\n`);
    process.exit(1);
  });
