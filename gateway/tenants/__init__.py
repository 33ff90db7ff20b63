"""Who may do what: API keys to tenants, their limits and their cache salts.

How the public port uses it, in this order:

    tenants = Tenants(keys_file, metrics)            # raises StartupError
    salts = Salts.load(config)                       # raises StartupError; config: warmroute.config.TenantsConfig
    limiter = Limiter(redis, metrics)                # `tenants.run()` and `limiter.run()` are tasks for the life time

    tenant = tenants.identify(authorization, x_api_key)     # values of the headers; x_api_key is None but for
                                                            # Anthropic's paths; raises RequestError
    if not tenant.may_use(model): raise model_refusal(model)
    names = tenant.visible(names)                           # for /v1/models
    salt = salts.salt(tenant, client_salt)                  # str | None: None adds nothing; never log it
    admission = await limiter.admit(tenant, tokens, now)    # now: time.monotonic(); raises RequestError
    with admission:                                         # or release(), which may be called again
        reply headers += admission.headers()                # x-ratelimit-*; () for tenants without limits
        admission.settle(prompt + completion tokens)        # when usage is known; settle(0) where nothing was served
"""
