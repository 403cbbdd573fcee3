"""A program of a user's: two models with an optimizer each (a GAN), data that no loader of PyTorch gives."""

import torch

torch.set_num_threads(1)
generator = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
critic = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for _ in range(10):
    real = torch.randn(32, 16)
    with torch.no_grad():
        fake = generator(torch.randn(32, 8))
    of_critic.zero_grad()
    (critic(fake).mean() - critic(real).mean()).backward()
    of_critic.step()
    of_generator.zero_grad()
    (-critic(generator(torch.randn(32, 8))).mean()).backward()
    of_generator.step()
